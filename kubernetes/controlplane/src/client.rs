//! Clients of the node's own servers, each with a certificate of the tree.

use std::time::Duration;

use kube::Config;
use kube::client::Client;
use pki::{Leaf, Pki};

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is none.
    #[error("{url} is no address of a server")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        #[source]
        source: http::uri::InvalidUri,
    },
    /// Certificate files cannot be used.
    #[error("cannot make a TLS client with certificate {name}")]
    Build {
        /// File name of the certificate without its ending.
        name: &'static str,
        /// What the client library said.
        #[source]
        source: kube::Error,
    },
}

/// A client of the API server at `server` that is the user of `leaf`. To be made inside a run,
/// on the shared runtime, and made anew by the next incarnation, which then uses the
/// certificates of that time.
///
/// # Errors
/// The certificate files are gone or are none.
pub fn client(pki: &Pki, leaf: Leaf, server: &str) -> Result<Client, ClientError> {
    build(leaf, config(pki, leaf, server)?)
}

pub(crate) fn build(leaf: Leaf, config: Config) -> Result<Client, ClientError> {
    Client::try_from(config).map_err(|source| ClientError::Build { name: leaf.file_stem(), source })
}

pub(crate) fn config(pki: &Pki, leaf: Leaf, server: &str) -> Result<Config, ClientError> {
    let url =
        server.parse().map_err(|source| ClientError::Url { url: server.to_owned(), source })?;
    let mut config = Config::new(url);
    // The file alone decides whom to trust. Without a list beside it the library first asks for the
    // trust store of the system, and a node has none; an empty list trusts nobody.
    config.root_cert = Some(Vec::new());
    config.root_cert_file = Some(pki.authority_path(leaf.authority()));
    config.auth_info.client_certificate = Some(text(&pki.certificate_path(leaf)));
    config.auth_info.client_key = Some(text(&pki.key_path(leaf)));
    config.connect_timeout = Some(Duration::from_secs(10));
    Ok(config)
}

fn text(path: &std::path::Path) -> String {
    path.to_string_lossy().into_owned()
}
