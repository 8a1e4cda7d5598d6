//! Kubeconfig texts.
//!
//! Services get one that names files of the certificate tree: it holds no secret, and client-go
//! reads the files again when they change, so that a renewed certificate needs no restart. The
//! one for a person carries its certificates inside.

use std::fmt::Write as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Where a client finds its API server and its own certificate.
#[derive(Clone, Copy, Debug)]
pub struct Kubeconfig<'a> {
    /// `https://host:port`.
    pub server: &'a str,
    /// Name of the cluster, user and context in the file.
    pub name: &'a str,
}

impl Kubeconfig<'_> {
    /// Refers to certificate files.
    pub fn by_path(&self, authority: &Path, certificate: &Path, key: &Path) -> String {
        self.text(
            &format!("certificate-authority: {}", quoted(&authority.to_string_lossy())),
            &[
                format!("client-certificate: {}", quoted(&certificate.to_string_lossy())),
                format!("client-key: {}", quoted(&key.to_string_lossy())),
            ],
        )
    }

    /// Carries the certificates (PEM) inside. The text is a secret.
    pub fn embedded(&self, authority: &str, certificate: &str, key: &str) -> String {
        self.text(
            &format!("certificate-authority-data: {}", STANDARD.encode(authority)),
            &[
                format!("client-certificate-data: {}", STANDARD.encode(certificate)),
                format!("client-key-data: {}", STANDARD.encode(key)),
            ],
        )
    }

    fn text(&self, authority: &str, user: &[String; 2]) -> String {
        let name = quoted(self.name);
        let server = quoted(self.server);
        let mut out = String::from("apiVersion: v1\nkind: Config\n");
        let _ = write!(
            out,
            "clusters:\n- name: {name}\n  cluster:\n    server: {server}\n    {authority}\n\
             users:\n- name: {name}\n  user:\n    {}\n    {}\n\
             contexts:\n- name: {name}\n  context:\n    cluster: {name}\n    user: {name}\n\
             current-context: {name}\n",
            user[0], user[1]
        );
        out
    }
}

/// A YAML double-quoted scalar.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: Kubeconfig<'static> = Kubeconfig { server: "https://127.0.0.1:6443", name: "hamlet" };

    #[test]
    fn a_service_kubeconfig_names_files_and_holds_no_secret() {
        insta::assert_snapshot!(K.by_path(
            Path::new("/data/kubernetes/pki/ca.crt"),
            Path::new("/data/kubernetes/pki/kubelet.crt"),
            Path::new("/data/kubernetes/pki/kubelet.key"),
        ));
    }

    #[test]
    fn a_personal_kubeconfig_carries_its_certificates() {
        insta::assert_snapshot!(K.embedded("CA\n", "CERT\n", "KEY\n"));
    }

    #[test]
    fn a_hostile_name_stays_inside_its_quotes() {
        assert_eq!(quoted("a\"b\\c\nd"), "\"a\\\"b\\\\c\\u000ad\"");
    }
}
