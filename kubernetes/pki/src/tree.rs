//! The tree on disk: reads what is there, keeps what may stay, issues the rest.

use std::fmt;
use std::path::PathBuf;

use localstorage::Dir;
use rcgen::KeyPair;

use crate::clock::Validity;
use crate::error::PkiError;
use crate::judge::{self, Reason};
use crate::kubeconfig::Kubeconfig;
use crate::spec::{Authority, Leaf, Request};
use crate::store::Store;
use crate::{issue, parse};

const SERVICE_ACCOUNT: &str = "service-account";
const SERVICE_ACCOUNT_PUBLIC: &str = "service-account.pub";

/// Certificates and keys of this node. Every file named by it exists.
pub struct Pki {
    store: Store,
    request: Request,
    cluster: KeyPair,
    etcd: KeyPair,
    front_proxy: KeyPair,
}

/// What one pass over the tree did and found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What was issued, in order.
    pub issued: Vec<Issued>,
    /// The end of every certificate, soonest first.
    pub expiries: Vec<Expiry>,
}

/// One certificate that was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issued {
    /// File name without its ending.
    pub name: &'static str,
    /// Why.
    pub reason: Reason,
}

impl fmt::Display for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "certificate {} issued: {}", self.name, self.reason)
    }
}

/// The end of one certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expiry {
    /// Unix time of its last second.
    pub not_after: i64,
    /// File name without its ending.
    pub name: &'static str,
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_second(self.not_after) {
            Ok(end) => write!(f, "certificate {} ends at {end}", self.name),
            Err(_) => write!(f, "certificate {} has no end", self.name),
        }
    }
}

impl Pki {
    /// Brings the tree in `dir` up to date for `request` at Unix time `now`. Blocks on the disk.
    ///
    /// # Errors
    /// A file that cannot be read or written, or a trusted key that is damaged; in both cases
    /// nothing that exists was replaced except leaves.
    pub fn ensure(dir: &Dir, request: Request, now: i64) -> Result<(Pki, Report), PkiError> {
        let store = Store::new(dir);
        let cluster = authority_key(&store, Authority::Cluster)?;
        let etcd = authority_key(&store, Authority::Etcd)?;
        let front_proxy = authority_key(&store, Authority::FrontProxy)?;
        service_account(&store)?;
        let pki = Pki { store, request, cluster, etcd, front_proxy };
        let report = pki.refresh(now)?;
        Ok((pki, report))
    }

    /// Issues anew what ends soon. To be called from time to time: a node may be up for years.
    /// The parts of the cluster read their files again by themselves.
    ///
    /// # Errors
    /// As for [`Pki::ensure`].
    pub fn refresh(&self, now: i64) -> Result<Report, PkiError> {
        let mut report = Report::default();
        for authority in Authority::ALL {
            self.refresh_authority(authority, now, &mut report)?;
        }
        for leaf in Leaf::ALL {
            self.refresh_leaf(leaf, now, &mut report)?;
        }
        report.expiries.sort();
        Ok(report)
    }

    /// Path of an authority's certificate.
    pub fn authority_path(&self, a: Authority) -> PathBuf {
        self.store.certificate_path(a.file_stem())
    }

    /// Path of a leaf's certificate.
    pub fn certificate_path(&self, leaf: Leaf) -> PathBuf {
        self.store.certificate_path(leaf.file_stem())
    }

    /// Path of a leaf's private key.
    pub fn key_path(&self, leaf: Leaf) -> PathBuf {
        self.store.key_path(leaf.file_stem())
    }

    /// Path of the key that signs service-account tokens.
    pub fn service_account_key_path(&self) -> PathBuf {
        self.store.key_path(SERVICE_ACCOUNT)
    }

    /// Path of its public half, by which tokens are checked.
    pub fn service_account_public_path(&self) -> PathBuf {
        self.store.path(SERVICE_ACCOUNT_PUBLIC)
    }

    /// The certificate of an authority, as PEM.
    ///
    /// # Errors
    /// The file is gone or unreadable.
    pub fn authority_pem(&self, a: Authority) -> Result<String, PkiError> {
        self.store.required(&Store::certificate_name(a.file_stem()))
    }

    /// Certificate and private key of a leaf, as PEM.
    ///
    /// # Errors
    /// A file is gone or unreadable.
    pub fn leaf_pem(&self, leaf: Leaf) -> Result<(String, String), PkiError> {
        Ok((
            self.store.required(&Store::certificate_name(leaf.file_stem()))?,
            self.store.required(&Store::key_name(leaf.file_stem()))?,
        ))
    }

    /// A kubeconfig for a service on this node; it names files and holds no secret.
    pub fn service_kubeconfig(&self, leaf: Leaf, server: &str) -> String {
        Kubeconfig { server, name: leaf.file_stem() }.by_path(
            &self.authority_path(Authority::Cluster),
            &self.certificate_path(leaf),
            &self.key_path(leaf),
        )
    }

    /// A kubeconfig with everything inside, for use elsewhere. A secret.
    ///
    /// # Errors
    /// A file is gone or unreadable.
    pub fn personal_kubeconfig(&self, leaf: Leaf, server: &str) -> Result<String, PkiError> {
        let (certificate, key) = self.leaf_pem(leaf)?;
        let authority = self.authority_pem(Authority::Cluster)?;
        Ok(Kubeconfig { server, name: "hamlet" }.embedded(&authority, &certificate, &key))
    }

    fn signing_key(&self, a: Authority) -> &KeyPair {
        match a {
            Authority::Cluster => &self.cluster,
            Authority::Etcd => &self.etcd,
            Authority::FrontProxy => &self.front_proxy,
        }
    }

    fn refresh_authority(
        &self,
        a: Authority,
        now: i64,
        report: &mut Report,
    ) -> Result<(), PkiError> {
        let name = a.file_stem();
        let key = self.signing_key(a);
        let pem = self.store.read(&Store::certificate_name(name))?;
        let found = pem.as_deref().and_then(|pem| parse::certificate(pem, key, key));
        let verdict = match (&pem, &found) {
            (None, _) => Some(Reason::Missing),
            (Some(_), None) => Some(Reason::Unreadable),
            (Some(_), Some(found)) => judge::authority(found, now),
        };
        let mut validity = found.map(|f| f.validity);
        if let Some(reason) = verdict {
            let pem =
                issue::authority(a, key, now).map_err(|source| PkiError::Issue { name, source })?;
            self.store.write(&Store::certificate_name(name), pem.as_bytes())?;
            validity = parse::certificate(pem.as_bytes(), key, key).map(|f| f.validity);
            report.issued.push(Issued { name, reason });
        }
        report.end_of(name, validity);
        Ok(())
    }

    fn refresh_leaf(&self, leaf: Leaf, now: i64, report: &mut Report) -> Result<(), PkiError> {
        let name = leaf.file_stem();
        let wanted = leaf.identity(&self.request);
        let authority = self.signing_key(wanted.authority);
        let pem = self.store.read(&Store::certificate_name(name))?;
        let key = self.store.read(&Store::key_name(name))?;
        let found = match (&pem, key.as_deref().and_then(parse_key)) {
            (Some(pem), Some(key)) => parse::certificate(pem, &key, authority),
            _ => None,
        };
        let verdict = match (&pem, &found) {
            (None, _) => Some(Reason::Missing),
            (Some(_), None) => Some(Reason::Unreadable),
            (Some(_), Some(found)) => judge::leaf(found, &wanted, now),
        };
        let mut validity = found.map(|f| f.validity);
        if let Some(reason) = verdict {
            let key = issue::key().map_err(|source| PkiError::Key { name, source })?;
            let pem = issue::leaf(&wanted, &key, authority, now)
                .map_err(|source| PkiError::Issue { name, source })?;
            self.store.write(&Store::key_name(name), key.serialize_pem().as_bytes())?;
            self.store.write(&Store::certificate_name(name), pem.as_bytes())?;
            validity = parse::certificate(pem.as_bytes(), &key, authority).map(|f| f.validity);
            report.issued.push(Issued { name, reason });
        }
        report.end_of(name, validity);
        Ok(())
    }
}

impl Report {
    fn end_of(&mut self, name: &'static str, validity: Option<Validity>) {
        if let Some(v) = validity {
            self.expiries.push(Expiry { not_after: v.not_after, name });
        }
    }
}

fn authority_key(store: &Store, a: Authority) -> Result<KeyPair, PkiError> {
    let name = a.file_stem();
    if let Some(bytes) = store.read(&Store::key_name(name))? {
        return parse_key(&bytes)
            .ok_or_else(|| PkiError::TrustedKeyUnreadable { path: store.key_path(name) });
    }
    if store.read(&Store::certificate_name(name))?.is_some() {
        return Err(PkiError::TrustedKeyMissing {
            certificate: store.certificate_path(name),
            key: store.key_path(name),
        });
    }
    new_key(store, name)
}

/// The key of the service accounts. Its public half is a file of its own: the API server reads no
/// public key out of a PKCS #8 private one.
fn service_account(store: &Store) -> Result<(), PkiError> {
    let key = match store.read(&Store::key_name(SERVICE_ACCOUNT))? {
        Some(bytes) => parse_key(&bytes).ok_or_else(|| PkiError::TrustedKeyUnreadable {
            path: store.key_path(SERVICE_ACCOUNT),
        })?,
        None => new_key(store, SERVICE_ACCOUNT)?,
    };
    let public = key.public_key_pem();
    if store.read(SERVICE_ACCOUNT_PUBLIC)?.as_deref() != Some(public.as_bytes()) {
        store.write(SERVICE_ACCOUNT_PUBLIC, public.as_bytes())?;
    }
    Ok(())
}

fn new_key(store: &Store, name: &'static str) -> Result<KeyPair, PkiError> {
    let key = issue::key().map_err(|source| PkiError::Key { name, source })?;
    store.write(&Store::key_name(name), key.serialize_pem().as_bytes())?;
    Ok(key)
}

fn parse_key(bytes: &[u8]) -> Option<KeyPair> {
    KeyPair::from_pem(std::str::from_utf8(bytes).ok()?).ok()
}

#[cfg(test)]
mod tests;
