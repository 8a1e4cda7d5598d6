//! The few network ioctls a node with a static address needs: link up, address, default route.
//!
//! Owner: the `network` Runnable of `node`. Invariant: each call is idempotent; what is already so is no
//! error. Must not know: where addresses come from.
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// A socket for interface ioctls.
#[derive(Debug)]
pub struct Interfaces(OwnedFd);

impl Interfaces {
    /// Opens the control socket.
    ///
    /// # Errors
    /// The errno of socket.
    pub fn open() -> io::Result<Interfaces> {
        let fd = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Interfaces(fd))
    }

    /// Sets an interface up.
    ///
    /// # Errors
    /// EINVAL for a name that is too long, else the errno of the ioctl.
    pub fn up(&self, name: &str) -> io::Result<()> {
        let mut request = named(name)?;
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        // JUSTIFICATION: ifreq is a C union.
        // SAFETY: SIOCGIFFLAGS has just filled the flags member.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        request.ifr_ifru.ifru_flags = flags | (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        self.ioctl(libc::SIOCSIFFLAGS, &mut request)
    }

    /// Gives an interface its only IPv4 address and prefix length.
    ///
    /// # Errors
    /// EINVAL for a name that is too long or a prefix above 32, else the errno of the ioctl.
    pub fn set_address(&self, name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        if prefix > 32 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut request = named(name)?;
        request.ifr_ifru.ifru_addr = sockaddr(address);
        self.ioctl(libc::SIOCSIFADDR, &mut request)?;
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        request.ifr_ifru.ifru_addr = sockaddr(Ipv4Addr::from(mask));
        self.ioctl(libc::SIOCSIFNETMASK, &mut request)
    }

    /// Adds the default route by `gateway`; one that is already there is kept.
    ///
    /// # Errors
    /// The errno of the ioctl, except EEXIST.
    pub fn add_default_route(&self, gateway: Ipv4Addr) -> io::Result<()> {
        // JUSTIFICATION: rtentry has no constructor.
        // SAFETY: rtentry is plain data for which zeroes mean "not given".
        let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
        route.rt_dst = sockaddr(Ipv4Addr::UNSPECIFIED);
        route.rt_genmask = sockaddr(Ipv4Addr::UNSPECIFIED);
        route.rt_gateway = sockaddr(gateway);
        route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
        // JUSTIFICATION: no safe wrapper for SIOCADDRT.
        // SAFETY: the pointer is to a live, initialised rtentry, which this request reads.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCADDRT, &raw mut route) };
        if done < 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EEXIST) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn ioctl(&self, request: libc::c_ulong, argument: &mut libc::ifreq) -> io::Result<()> {
        // JUSTIFICATION: no safe wrapper for interface ioctls.
        // SAFETY: every request used here reads or writes exactly one ifreq, which is live.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), request, std::ptr::from_mut(argument)) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

fn named(name: &str) -> io::Result<libc::ifreq> {
    // JUSTIFICATION: ifreq has no constructor.
    // SAFETY: ifreq is plain data; zeroes are a valid, empty request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    Ok(request)
}

fn sockaddr(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    // Bytes 0 and 1 are the port.
    for (to, from) in data[2..6].iter_mut().zip(address.octets()) {
        *to = from.cast_signed();
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_lies_behind_the_port_in_network_order() {
        let s = sockaddr(Ipv4Addr::new(10, 0, 2, 255));
        assert_eq!(s.sa_data[..7], [0, 0, 10, 0, 2, -1, 0]);
        assert_eq!(i32::from(s.sa_family), libc::AF_INET);
    }

    #[test]
    fn an_interface_name_must_leave_room_for_its_terminator() {
        assert!(named("eth0").is_ok());
        assert!(named("").is_err());
        assert!(named("fifteen-letters").is_ok());
        assert!(named("sixteen-letters-").is_err());
    }

    #[test]
    fn loopback_can_be_addressed_only_by_an_existing_name() {
        let i = Interfaces::open().unwrap();
        assert_eq!(i.up("no-such-if").unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
