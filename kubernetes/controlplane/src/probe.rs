//! Readiness over TLS: one GET with a client certificate, 200 means ready.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::Config;
use pki::{Leaf, Pki};
use supervisor::Probe;

use crate::client::{self, ClientError};

/// Longest time one question may take; the supervisor asks again anyway.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks `https://host:port/path`.
pub struct HttpsProbe {
    config: Config,
    leaf: Leaf,
    path: String,
}

impl HttpsProbe {
    /// A probe of `url` with the certificate of `leaf`, which also decides which authority the
    /// server's certificate must come from.
    ///
    /// # Errors
    /// `url` is none.
    pub fn new(pki: &Pki, leaf: Leaf, url: &str) -> Result<HttpsProbe, ClientError> {
        let (base, path) = split(url);
        let mut config = client::config(pki, leaf, base)?;
        config.default_retry = false;
        Ok(HttpsProbe { config, leaf, path: path.to_owned() })
    }

    async fn ask(&self) -> Result<(), String> {
        // A connection per question: a server that restarts under a kept connection would look
        // like one that is not there. Asked only until the first success.
        let client = client::build(self.leaf, self.config.clone()).map_err(|e| chain(&e))?;
        let request = http::Request::get(&self.path).body(Vec::new()).map_err(|e| chain(&e))?;
        match tokio::time::timeout(TIMEOUT, client.request_text(request)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(kube::Error::Api(status))) => {
                Err(format!("{} answers {}: {}", self.path, status.code, short(&status.message)))
            }
            Ok(Err(error)) => Err(chain(&error)),
            Err(_) => Err(format!("{} gives no answer within {TIMEOUT:?}", self.path)),
        }
    }
}

impl Probe for HttpsProbe {
    fn ready(&self) -> BoxFuture<'_, Result<(), String>> {
        self.ask().boxed()
    }
}

fn split(url: &str) -> (&str, &str) {
    let host = url.find("://").map_or(0, |at| at + 3);
    match url[host..].find('/') {
        Some(at) => url.split_at(host + at),
        None => (url, "/"),
    }
}

/// The failed checks of a `/readyz?verbose`-like body; all of it if there are none.
fn short(body: &str) -> String {
    let failed: Vec<&str> = body.lines().filter(|l| l.starts_with("[-]")).collect();
    let text = if failed.is_empty() { body.trim().to_owned() } else { failed.join(" ") };
    text.chars().take(200).collect()
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        let part = e.to_string();
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        source = e.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_split_before_its_path() {
        assert_eq!(split("https://127.0.0.1:1/readyz"), ("https://127.0.0.1:1", "/readyz"));
        assert_eq!(split("https://127.0.0.1:1"), ("https://127.0.0.1:1", "/"));
    }

    #[test]
    fn a_not_ready_answer_is_shortened_to_what_failed() {
        let body = "[+]ping ok\n[-]poststarthook/rbac/bootstrap-roles failed: reason withheld\n\
                    [+]log ok\nreadyz check failed";
        assert_eq!(short(body), "[-]poststarthook/rbac/bootstrap-roles failed: reason withheld");
        assert_eq!(short("  nope \n"), "nope");
    }
}
