//! Loopback ports for hostfwd.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};

/// A port that was free a moment ago. Another process may take it before QEMU
/// does; starting a VM tries again with other ports then.
///
/// # Errors
/// This machine has no free loopback port.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free loopback port")?;
    Ok(listener.local_addr().context("no address of a bound socket")?.port())
}

/// Whether a listener could be bound to the port now.
pub fn port_is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_port_is_not_free_and_a_released_one_is() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!port_is_free(port));
        drop(listener);
        assert!(port_is_free(port));
    }
}
