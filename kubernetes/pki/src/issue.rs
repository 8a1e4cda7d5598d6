//! Makes keys and certificates: the only user of `rcgen`.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SerialNumber, date_time_ymd,
};

use crate::clock::{Lifetime, Validity};
use crate::spec::{Authority, Identity, Usage};

/// A new ECDSA P-256 key.
pub(crate) fn key() -> Result<KeyPair, rcgen::Error> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
}

/// The self-signed certificate of an authority, as PEM.
pub(crate) fn authority(a: Authority, key: &KeyPair, now: i64) -> Result<String, rcgen::Error> {
    Ok(authority_params(a, now).self_signed(key)?.pem())
}

/// A leaf certificate, as PEM.
pub(crate) fn leaf(
    id: &Identity,
    leaf_key: &KeyPair,
    authority_key: &KeyPair,
    now: i64,
) -> Result<String, rcgen::Error> {
    let names: Vec<String> = id.names.iter().cloned().collect();
    let mut params = CertificateParams::new(names)?;
    set_validity(&mut params, Validity::from_now(now, Lifetime::Leaf));
    params.serial_number = Some(serial());
    params.distinguished_name = rcgen::DistinguishedName::new();
    if let Some(group) = &id.group {
        params.distinguished_name.push(DnType::OrganizationName, group.as_str());
    }
    params.distinguished_name.push(DnType::CommonName, id.common_name.as_str());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = id
        .usages
        .iter()
        .map(|u| match u {
            Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
            Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
        })
        .collect();
    params.use_authority_key_identifier_extension = true;
    // Subject and key are all that an issuer gives to its leaves, so the parameters are built
    // from the constants instead of being read back from the authority's file.
    let issuer = Issuer::new(authority_params(id.authority, now), authority_key);
    Ok(params.signed_by(leaf_key, &issuer)?.pem())
}

fn authority_params(a: Authority, now: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    set_validity(&mut params, Validity::from_now(now, Lifetime::Authority));
    params.serial_number = Some(serial());
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, a.common_name());
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}

fn set_validity(params: &mut CertificateParams, v: Validity) {
    let at = |unix: i64| {
        date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(unix).unwrap_or_default())
    };
    params.not_before = at(v.not_before);
    params.not_after = at(v.not_after);
}

/// 127 random bits: positive (RFC 5280, 4.1.2.2) and never repeated, also for an authority that is
/// renewed with the same key.
fn serial() -> SerialNumber {
    let mut bytes: [u8; 16] = rand::random();
    bytes[0] &= 0x7f;
    bytes[0] |= 0x40;
    SerialNumber::from_slice(&bytes)
}
