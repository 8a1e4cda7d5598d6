//! The only parsers of volume parameters (StorageClass) and mount options. Pure.
//!
//! Invariants: an unknown key or a bad value is an error that names it; nothing is
//! guessed. `csi.storage.k8s.io/*` keys are accepted and mean nothing here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::types::{Atime, MountAttr};

/// Prefix of what CSI sidecars add on their own account.
const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";

/// How the inode limit is chosen (rule 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum InodePolicy {
    /// 100000, as the first provisioner of this layout did.
    #[default]
    Origin,
    /// The larger of 100000 and one for each 2048 bytes.
    Auto,
    /// One for each so many bytes.
    Ratio(u64),
    /// So many.
    Count(u64),
}

impl InodePolicy {
    /// The inode limit of a volume of `bytes`; at least 16.
    pub fn limit(self, bytes: u64) -> u64 {
        let n = match self {
            InodePolicy::Origin => 100_000,
            InodePolicy::Auto => (bytes / 2048).max(100_000),
            InodePolicy::Ratio(r) => bytes / r.max(1),
            InodePolicy::Count(n) => n,
        };
        n.max(16)
    }
}

/// What happens to the bytes of a deleted volume (rule 8.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Wipe {
    /// Unlinked.
    #[default]
    None,
    /// Overwritten and read back. Not supported yet.
    Verified,
}

/// How a clone of a directory in use is cut (rule 10.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Consistency {
    /// Each file for itself where writers cannot be frozen.
    #[default]
    PerFile,
    /// Fail rather than that.
    Require,
}

/// Parsed parameters of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Params {
    /// Inode limit.
    pub inodes: InodePolicy,
    /// Permission bits of the directory (≤ 07777).
    pub mode: u32,
    /// Owner of the directory.
    pub uid: u32,
    /// Group of the directory.
    pub gid: u32,
    /// What happens at deletion.
    pub wipe: Wipe,
    /// Whether a block image is allocated at once.
    pub preallocate: bool,
    /// Block size of a block volume, 512 or 4096.
    pub block_size: u32,
    /// For clones.
    pub consistency: Consistency,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            inodes: InodePolicy::Origin,
            mode: 0o755,
            uid: 0,
            gid: 0,
            wipe: Wipe::None,
            preallocate: true,
            block_size: 512,
            consistency: Consistency::PerFile,
        }
    }
}

/// A parameter that is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    /// No such key.
    #[error(
        "unknown parameter {0:?}; known: inodes, mode, uid, gid, wipe, preallocate, blockSize, \
         consistency"
    )]
    Unknown(String),
    /// The key is known, the value is not.
    #[error("bad value {value:?} of parameter {key:?}: {expected}")]
    BadValue {
        /// Key.
        key: String,
        /// Value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
}

/// A mount option that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// `ro` has a place of its own.
    #[error("mount option \"ro\" is not allowed: use readOnly: true in the pod")]
    ReadOnly,
    /// Not in the list.
    #[error(
        "unknown mount option {0:?}; known: rw, exec, noexec, suid, nosuid, dev, nodev, noatime, \
         relatime, strictatime, nodiratime"
    )]
    Unknown(String),
}

/// Parses StorageClass parameters.
pub fn parse_params(m: &BTreeMap<String, String>) -> Result<Params, ParamError> {
    let mut p = Params::default();
    for (key, value) in m {
        if key.starts_with(SIDECAR_PREFIX) {
            continue;
        }
        let bad = |expected| ParamError::BadValue {
            key: key.clone(),
            value: value.chars().take(128).collect(),
            expected,
        };
        match key.as_str() {
            "inodes" => p.inodes = inodes(value).ok_or_else(|| bad(INODES))?,
            "mode" => p.mode = octal(value).ok_or_else(|| bad("octal, at most 07777"))?,
            "uid" => p.uid = id(value).ok_or_else(|| bad("a number below 4294967295"))?,
            "gid" => p.gid = id(value).ok_or_else(|| bad("a number below 4294967295"))?,
            "wipe" => {
                p.wipe = match value.as_str() {
                    "none" => Wipe::None,
                    "verified" => Wipe::Verified,
                    _ => return Err(bad("none or verified")),
                }
            }
            "preallocate" => {
                p.preallocate = match value.as_str() {
                    "true" => true,
                    "false" => false,
                    _ => return Err(bad("true or false")),
                }
            }
            "blockSize" => {
                p.block_size = match value.as_str() {
                    "512" => 512,
                    "4096" => 4096,
                    _ => return Err(bad("512 or 4096")),
                }
            }
            "consistency" => {
                p.consistency = match value.as_str() {
                    "per-file" => Consistency::PerFile,
                    "require" => Consistency::Require,
                    _ => return Err(bad("per-file or require")),
                }
            }
            _ => return Err(ParamError::Unknown(key.chars().take(128).collect())),
        }
    }
    Ok(p)
}

const INODES: &str = "auto, ratio:N, or a number from 1 to 1000000000000";
/// No filesystem has more inodes; a larger number is a slip of the pen.
const MAX_INODES: u64 = 1_000_000_000_000;

/// Digits only: `str::parse` would also take a leading `+`.
fn digits(text: &str, radix: u32) -> Option<u64> {
    let ok = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if ok { u64::from_str_radix(text, radix).ok() } else { None }
}

fn inodes(value: &str) -> Option<InodePolicy> {
    let in_range = |n: &u64| (1..=MAX_INODES).contains(n);
    if value == "auto" {
        return Some(InodePolicy::Auto);
    }
    match value.strip_prefix("ratio:") {
        Some(n) => digits(n, 10).filter(in_range).map(InodePolicy::Ratio),
        None => digits(value, 10).filter(in_range).map(InodePolicy::Count),
    }
}

fn octal(value: &str) -> Option<u32> {
    digits(value, 8).and_then(|n| u32::try_from(n).ok()).filter(|n| *n <= 0o7777)
}

fn id(value: &str) -> Option<u32> {
    digits(value, 10).and_then(|n| u32::try_from(n).ok()).filter(|n| *n != u32::MAX)
}

/// Parses `mountOptions`. Without any: `nosuid,nodev`; the last of a pair wins.
pub fn parse_mount_flags(flags: &[String]) -> Result<MountAttr, FlagError> {
    let mut a = MountAttr { nosuid: true, nodev: true, ..MountAttr::default() };
    for flag in flags {
        match flag.as_str() {
            "rw" => {}
            "exec" => a.noexec = false,
            "noexec" => a.noexec = true,
            "suid" => a.nosuid = false,
            "nosuid" => a.nosuid = true,
            "dev" => a.nodev = false,
            "nodev" => a.nodev = true,
            "noatime" => a.atime = Atime::Never,
            "relatime" => a.atime = Atime::Relative,
            "strictatime" => a.atime = Atime::Strict,
            "nodiratime" => a.nodiratime = true,
            "ro" => return Err(FlagError::ReadOnly),
            other => return Err(FlagError::Unknown(other.chars().take(128).collect())),
        }
    }
    Ok(a)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> Result<Params, ParamError> {
        parse_params(&pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn s5_4_known_parameters_are_parsed() {
        assert_eq!(params(&[]), Ok(Params::default()));
        let p = params(&[
            ("inodes", "ratio:4096"),
            ("mode", "02770"),
            ("uid", "1000"),
            ("gid", "0"),
            ("wipe", "verified"),
            ("preallocate", "false"),
            ("blockSize", "4096"),
            ("consistency", "require"),
            ("csi.storage.k8s.io/pvc/name", "anything"),
        ])
        .expect("parse");
        assert_eq!(p.inodes, InodePolicy::Ratio(4096));
        assert_eq!((p.mode, p.uid, p.gid), (0o2770, 1000, 0));
        assert_eq!((p.wipe, p.preallocate), (Wipe::Verified, false));
        assert_eq!((p.block_size, p.consistency), (4096, Consistency::Require));
    }

    #[test]
    fn s5_4_an_unknown_key_or_bad_value_is_named() {
        for (key, value) in [
            ("inodes", "0"),
            ("inodes", "ratio:0"),
            ("inodes", "+5"),
            ("inodes", ""),
            ("mode", "0999"),
            ("mode", "10000"),
            ("mode", "rwx"),
            ("uid", "-1"),
            ("uid", "4294967295"),
            ("wipe", "yes"),
            ("preallocate", "1"),
            ("blockSize", "1024"),
            ("consistency", ""),
        ] {
            match params(&[(key, value)]) {
                Err(ParamError::BadValue { key: k, value: v, .. }) => {
                    assert_eq!((k.as_str(), v.as_str()), (key, value));
                }
                other => panic!("{key}={value} gave {other:?}"),
            }
        }
        assert_eq!(params(&[("type", "x")]), Err(ParamError::Unknown("type".into())));
        assert_eq!(params(&[("Mode", "0")]), Err(ParamError::Unknown("Mode".into())));
    }

    #[test]
    fn s4_1_inode_limits() {
        let gib = 1 << 30;
        assert_eq!(InodePolicy::Origin.limit(gib), 100_000);
        assert_eq!(InodePolicy::Auto.limit(gib), 524_288);
        assert_eq!(InodePolicy::Auto.limit(1), 100_000);
        assert_eq!(InodePolicy::Ratio(1 << 20).limit(gib), 1024);
        assert_eq!(InodePolicy::Ratio(1 << 40).limit(gib), 16);
        assert_eq!(InodePolicy::Count(3).limit(gib), 16);
        assert_eq!(InodePolicy::Count(77).limit(gib), 77);
    }

    fn flags(f: &[&str]) -> Result<MountAttr, FlagError> {
        parse_mount_flags(&f.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn s5_3_mount_flags_default_to_nosuid_nodev_and_the_last_of_a_pair_wins() {
        let default = MountAttr { nosuid: true, nodev: true, ..MountAttr::default() };
        assert_eq!(flags(&[]), Ok(default));
        assert_eq!(flags(&["rw"]), Ok(default));
        assert_eq!(flags(&["nosuid", "suid", "dev"]), Ok(MountAttr::default()));
        assert_eq!(
            flags(&["exec", "noexec", "noatime", "nodiratime"]),
            Ok(MountAttr { noexec: true, nodiratime: true, atime: Atime::Never, ..default })
        );
        assert_eq!(flags(&["strictatime", "relatime"]), Ok(default));
    }

    #[test]
    fn s5_3_other_mount_flags_are_refused_by_name() {
        assert_eq!(flags(&["ro"]), Err(FlagError::ReadOnly));
        for bad in ["", "sync", "nouuid", "rw,exec", "RW", "prjquota"] {
            assert_eq!(flags(&[bad]), Err(FlagError::Unknown(bad.into())));
        }
    }
}
