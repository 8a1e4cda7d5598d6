//! Where a node is reached. Pure.
//!
//! Must not know: how to connect.
use std::fmt;
use std::path::PathBuf;

/// A way to the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// The control socket of the node this runs on.
    Unix(PathBuf),
    /// Its dashboard, plain: `host:port`.
    Http(String),
    /// The socket of the virtual machine's port `hamlet.host`.
    Host(PathBuf),
}

impl Endpoint {
    /// Reads an endpoint.
    ///
    /// # Errors
    /// A text that names none, with the forms there are.
    pub fn parse(text: &str) -> Result<Endpoint, String> {
        let wrong = |why: &str| {
            format!(
                "endpoint {text:?} {why}; endpoints look like unix:/run/hamlet/control.sock, \
                 http://127.0.0.1:7840 or host:/path/of/the/socket"
            )
        };
        if let Some(address) = text.strip_prefix("http://") {
            let address = address.trim_end_matches('/');
            let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            if address.contains(['/', '?', '#', '@']) {
                return Err(wrong("has more than a host and a port"));
            }
            return match port {
                Some(_) => Ok(Endpoint::Http(address.to_owned())),
                None => Err(wrong("has no port")),
            };
        }
        if text.starts_with("https://") {
            return Err(wrong("is of a kind that is not served"));
        }
        let path = text.strip_prefix("unix:").unwrap_or(text);
        let host = text.strip_prefix("host:");
        match (host, path) {
            (Some(path), _) if !path.is_empty() => Ok(Endpoint::Host(path.into())),
            (None, path) if path.starts_with('/') => Ok(Endpoint::Unix(path.into())),
            _ => Err(wrong("is none")),
        }
    }

    /// What to do when nobody answers there.
    pub fn hint(&self) -> &'static str {
        match self {
            Endpoint::Unix(_) => {
                "This is the node's own socket, for its root user. From elsewhere give --endpoint \
                 http://<node>:7840 with --token, or host:<socket> on the machine that runs the node."
            }
            Endpoint::Http(_) => {
                "Is the node up, and the port forwarded? Its console says `HAMLET ready dashboard=…`."
            }
            Endpoint::Host(_) => {
                "Is the machine running, and nobody else connected to this socket? It takes one client \
                 at a time."
            }
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Http(address) => write!(f, "http://{address}"),
            Endpoint::Host(path) => write!(f, "host:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c1_an_endpoint_is_a_socket_an_address_or_the_hosts_channel() {
        let unix = Endpoint::Unix("/run/x.sock".into());
        assert_eq!(Endpoint::parse("/run/x.sock").as_ref(), Ok(&unix));
        assert_eq!(Endpoint::parse("unix:/run/x.sock").as_ref(), Ok(&unix));
        assert_eq!(Endpoint::parse("http://[::1]:7840/"), Ok(Endpoint::Http("[::1]:7840".into())));
        assert_eq!(Endpoint::parse("host:vm/host.sock"), Ok(Endpoint::Host("vm/host.sock".into())));
        for bad in
            ["", "x.sock", "http://node", "http://node:x", "http://a:1/x", "host:", "https://a:1"]
        {
            let why = Endpoint::parse(bad).unwrap_err();
            assert!(why.contains("endpoints look like"), "{bad}: {why}");
        }
        for text in ["unix:/a", "http://a:1", "host:/b"] {
            assert_eq!(Endpoint::parse(text).unwrap().to_string(), text);
        }
    }
}
