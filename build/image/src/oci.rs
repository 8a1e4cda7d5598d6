//! Container image archives in the OCI layout, for `containerd` to import.
//!
//! An archive has one uncompressed layer of a few static files. It is written
//! by hand (tar and SHA-256): same inputs, same bytes, same digests.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// What a container image holds.
#[derive(Debug, Clone)]
pub(crate) struct ContainerImage {
    /// Full name with tag.
    pub(crate) name: String,
    /// Executables: path without leading slash → bytes.
    pub(crate) programs: BTreeMap<String, Vec<u8>>,
    /// Symbolic links: path without leading slash → target.
    pub(crate) links: BTreeMap<String, String>,
    /// Empty folders: path without leading slash → mode.
    pub(crate) folders: BTreeMap<String, u32>,
    /// Command line when the pod names none.
    pub(crate) command: Vec<String>,
}

/// Applets of busybox that the image links; the demo and the tests use them.
const APPLETS: &[&str] = &[
    "awk",
    "basename",
    "cat",
    "chmod",
    "chown",
    "cp",
    "cut",
    "date",
    "dd",
    "df",
    "dirname",
    "du",
    "echo",
    "env",
    "expr",
    "false",
    "find",
    "fsync",
    "grep",
    "head",
    "hostname",
    "id",
    "ip",
    "kill",
    "ln",
    "ls",
    "md5sum",
    "mkdir",
    "mktemp",
    "mount",
    "mv",
    "nc",
    "nslookup",
    "od",
    "ping",
    "printf",
    "ps",
    "pwd",
    "readlink",
    "rm",
    "rmdir",
    "sed",
    "seq",
    "sh",
    "sha256sum",
    "sleep",
    "sort",
    "stat",
    "sync",
    "tail",
    "tar",
    "tee",
    "test",
    "touch",
    "tr",
    "true",
    "truncate",
    "umount",
    "uname",
    "uniq",
    "vi",
    "wc",
    "wget",
    "which",
    "xargs",
];

/// The sandbox image: one program that waits and reaps.
pub(crate) fn pause(program: Vec<u8>) -> ContainerImage {
    ContainerImage {
        name: "hamlet.dev/pause:1".into(),
        programs: BTreeMap::from([("pause".into(), program)]),
        links: BTreeMap::new(),
        folders: BTreeMap::new(),
        command: vec!["/pause".into()],
    }
}

/// A small image with a shell, for the demo and the tests.
pub(crate) fn busybox(program: Vec<u8>) -> ContainerImage {
    let links = APPLETS.iter().map(|name| (format!("bin/{name}"), "busybox".to_owned())).collect();
    ContainerImage {
        name: "hamlet.dev/busybox:1".into(),
        programs: BTreeMap::from([("bin/busybox".into(), program)]),
        links,
        folders: BTreeMap::from([("bin".into(), 0o755), ("tmp".into(), 0o1777)]),
        command: vec!["/bin/sh".into()],
    }
}

/// The archive's bytes.
///
/// # Errors
/// A path that does not fit into a tar header.
pub(crate) fn archive(image: &ContainerImage) -> Result<Vec<u8>> {
    let layer = layer(image)?;
    let config = serde_json::to_vec(&json!({
        "architecture": "amd64",
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": { "Env": ["PATH=/bin"], "Cmd": image.command },
        "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
        "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "hamlet" }],
    }))?;
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
    }))?;
    let mut top = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    top["annotations"] = json!({
        // containerd takes the full name from its own annotation only.
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": image.name.rsplit(':').next(),
    });
    let index = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [top],
    }))?;
    let mut files = BTreeMap::from([
        ("index.json".to_owned(), index),
        ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
    ]);
    for blob in [config, manifest, layer] {
        files.insert(format!("blobs/{}", digest(&blob).replace(':', "/")), blob);
    }
    let mut tar = tar::Builder::new(Vec::new());
    for folder in ["blobs", "blobs/sha256"] {
        append(&mut tar, folder, 0o755, tar::EntryType::Directory, &[])?;
    }
    for (path, bytes) in &files {
        append(&mut tar, path, 0o644, tar::EntryType::Regular, bytes)?;
    }
    Ok(tar.into_inner()?)
}

fn layer(image: &ContainerImage) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, mode) in &image.folders {
        append(&mut tar, path, *mode, tar::EntryType::Directory, &[])?;
    }
    for (path, bytes) in &image.programs {
        append(&mut tar, path, 0o755, tar::EntryType::Regular, bytes)?;
    }
    for (path, target) in &image.links {
        let mut header = header(0o777, tar::EntryType::Symlink, 0);
        tar.append_link(&mut header, path, target)?;
    }
    Ok(tar.into_inner()?)
}

fn append(
    tar: &mut tar::Builder<Vec<u8>>,
    path: &str,
    mode: u32,
    kind: tar::EntryType,
    bytes: &[u8],
) -> Result<()> {
    let mut header = header(mode, kind, bytes.len() as u64);
    tar.append_data(&mut header, path, bytes)?;
    Ok(())
}

fn header(mode: u32, kind: tar::EntryType, size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(bytes), "size": bytes.len() })
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            files.insert(path, bytes);
        }
        files
    }

    #[test]
    fn every_digest_of_the_archive_names_a_blob_with_these_bytes() {
        let files = files(&archive(&busybox(b"program".to_vec())).unwrap());
        let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        let manifest_digest = index["manifests"][0]["digest"].as_str().unwrap();
        let blob = |digest: &str| files[&format!("blobs/{}", digest.replace(':', "/"))].clone();
        let manifest: Value = serde_json::from_slice(&blob(manifest_digest)).unwrap();
        let layer = manifest["layers"][0]["digest"].as_str().unwrap();
        assert_eq!(digest(&blob(layer)), layer);
        let config = blob(manifest["config"]["digest"].as_str().unwrap());
        let config: Value = serde_json::from_slice(&config).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0].as_str().unwrap(), layer);
        let name = &index["manifests"][0]["annotations"]["io.containerd.image.name"];
        assert_eq!(name, "hamlet.dev/busybox:1");
    }

    #[test]
    fn equal_inputs_give_equal_bytes() {
        let image = pause(b"program".to_vec());
        assert_eq!(archive(&image).unwrap(), archive(&image).unwrap());
    }
}
