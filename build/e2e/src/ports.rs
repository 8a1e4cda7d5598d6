//! Loopback ports for hostfwd.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result, bail};

/// A port that was free a moment ago. Another process may take it before QEMU
/// does; starting a VM tries again with other ports then.
///
/// # Errors
/// This machine has no free loopback port.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free loopback port")?;
    Ok(listener.local_addr().context("no address of a bound socket")?.port())
}

/// Makes sure that a port somebody chose can be listened on.
///
/// # Errors
/// It cannot; says why and what to do.
pub fn check_port(port: u16) -> Result<()> {
    let Err(error) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) else { return Ok(()) };
    match error.kind() {
        ErrorKind::AddrInUse => {
            bail!("port {port} of 127.0.0.1 is in use by another program; choose another one")
        }
        ErrorKind::PermissionDenied => {
            bail!("port {port} is for root only; choose one above 1023")
        }
        _ => Err(error).with_context(|| format!("cannot listen on port {port} of 127.0.0.1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_port_is_refused_by_number_and_a_released_one_is_not() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let error = check_port(port).unwrap_err().to_string();
        assert!(error.contains(&port.to_string()) && error.contains("in use"), "{error}");
        drop(listener);
        check_port(port).unwrap();
    }
}
