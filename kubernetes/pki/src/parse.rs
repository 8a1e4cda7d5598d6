//! Reads back what a certificate file says: the only user of `x509-parser`.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use rcgen::{KeyPair, PublicKeyData};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::clock::Validity;
use crate::judge::Found;
use crate::spec::Usage;

/// `None` if the text is not exactly one certificate that we understand.
pub(crate) fn certificate(pem: &[u8], key: &KeyPair, authority: &KeyPair) -> Option<Found> {
    let (rest, block) = x509_parser::pem::parse_x509_pem(pem).ok()?;
    if block.label != "CERTIFICATE" || !rest.iter().all(u8::is_ascii_whitespace) {
        return None;
    }
    let (_, cert) = X509Certificate::from_der(&block.contents).ok()?;
    let mut groups = cert.subject().iter_organization();
    let group = match groups.next() {
        Some(o) => Some(o.as_str().ok()?.to_owned()),
        None => None,
    };
    if groups.next().is_some() {
        return None;
    }
    Some(Found {
        common_name: cert.subject().iter_common_name().next()?.as_str().ok()?.to_owned(),
        group,
        names: alternative_names(&cert)?,
        usages: usages(&cert)?,
        validity: Validity {
            not_before: cert.validity().not_before.timestamp(),
            not_after: cert.validity().not_after.timestamp(),
        },
        key_matches: cert.public_key().raw == key.subject_public_key_info(),
        signed_by_us: signed_by(&cert, authority),
        is_authority: cert.is_ca(),
    })
}

fn signed_by(cert: &X509Certificate<'_>, authority: &KeyPair) -> bool {
    let spki = authority.subject_public_key_info();
    x509_parser::x509::SubjectPublicKeyInfo::from_der(&spki)
        .is_ok_and(|(_, spki)| cert.verify_signature(Some(&spki)).is_ok())
}

fn alternative_names(cert: &X509Certificate<'_>) -> Option<BTreeSet<String>> {
    let Some(extension) = cert.subject_alternative_name().ok()? else {
        return Some(BTreeSet::new());
    };
    let mut names = BTreeSet::new();
    for name in &extension.value.general_names {
        names.insert(match name {
            GeneralName::DNSName(n) => (*n).to_owned(),
            GeneralName::IPAddress(b) => match b.len() {
                4 => Ipv4Addr::from(<[u8; 4]>::try_from(*b).ok()?).to_string(),
                16 => Ipv6Addr::from(<[u8; 16]>::try_from(*b).ok()?).to_string(),
                _ => return None,
            },
            // No certificate of ours has any other kind.
            _ => return None,
        });
    }
    Some(names)
}

fn usages(cert: &X509Certificate<'_>) -> Option<BTreeSet<Usage>> {
    let mut usages = BTreeSet::new();
    if let Some(extension) = cert.extended_key_usage().ok()? {
        if extension.value.any {
            return None;
        }
        if extension.value.client_auth {
            usages.insert(Usage::Client);
        }
        if extension.value.server_auth {
            usages.insert(Usage::Server);
        }
    }
    Some(usages)
}
