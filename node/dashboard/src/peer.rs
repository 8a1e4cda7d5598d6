//! Who sent a request, and what follows from that alone.
//!
//! Purpose: whoever accepts connections says who is at the other end; the router judges by it (rules
//! W6 and W9). Pure. Must not know: tokens, routes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Read everything.
    Viewer,
    /// And restart services, set log levels, end the node.
    Admin,
}

/// Who sent a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// Somebody on the network: the token decides.
    Network(IpAddr),
    /// Somebody on the network with a client certificate that the node's own authority has signed.
    Certificate {
        /// From where.
        address: IpAddr,
        /// The common name.
        name: String,
        /// What the certificate says.
        role: Role,
    },
    /// A process of the node's own root user at the control socket.
    Socket {
        /// Its process id.
        pid: i32,
    },
    /// Whoever runs the machine, by the host's own channel.
    Host,
}

impl Peer {
    /// What it may do by being who it is; none if it must show a token.
    pub(crate) fn role(&self) -> Option<Role> {
        match self {
            Peer::Network(_) => None,
            Peer::Certificate { role, .. } => Some(*role),
            Peer::Socket { .. } | Peer::Host => Some(Role::Admin),
        }
    }

    /// Whose wrong tokens are counted together.
    pub(crate) fn address(&self) -> IpAddr {
        match self {
            Peer::Network(address) | Peer::Certificate { address, .. } => *address,
            Peer::Socket { .. } | Peer::Host => Ipv4Addr::LOCALHOST.into(),
        }
    }
}

impl Default for Peer {
    /// Somebody unknown.
    fn default() -> Peer {
        Peer::Network(Ipv4Addr::UNSPECIFIED.into())
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Network(address) => write!(f, "{address}"),
            Peer::Certificate { address, name, .. } => write!(f, "{name} at {address}"),
            Peer::Socket { pid } => write!(f, "pid {pid} at the control socket"),
            Peer::Host => f.write_str("the host channel"),
        }
    }
}
