//! Shared libraries of a program: the closure over DT_NEEDED.
//!
//! Parsing is pure and reads 64-bit little-endian ELF, the only kind the image
//! holds. Searching follows Debian's multiarch folders; RPATH is not honoured,
//! because no program of ours has one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_LOAD: u32 = 1;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// Folders in which Debian's dynamic loader looks, in its order.
const LIBRARY_FOLDERS: &[&str] =
    &["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib"];

/// What a program asks of the loader.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Path of the dynamic loader; `None` for static programs and libraries.
    pub(crate) interpreter: Option<String>,
    /// Names of libraries.
    pub(crate) libraries: Vec<String>,
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

/// Reads what an ELF file needs.
///
/// # Errors
/// Not a 64-bit little-endian ELF file, or one whose tables point outside it.
pub(crate) fn needs(file: &[u8]) -> Result<Needs> {
    if file.get(..6) != Some(&[0x7f, b'E', b'L', b'F', 2, 1]) {
        bail!("not a 64-bit little-endian ELF file");
    }
    let segments = segments(file)?;
    let mut needs = Needs::default();
    let Some(dynamic) = segments.iter().find(|s| s.kind == PT_DYNAMIC) else { return Ok(needs) };
    if let Some(interp) = segments.iter().find(|s| s.kind == PT_INTERP) {
        needs.interpreter = Some(text_at(file, interp.offset)?);
    }
    let (mut names, mut strings) = (Vec::new(), None);
    for at in (dynamic.offset..dynamic.offset + dynamic.size).step_by(16) {
        match (u64_at(file, at)?, u64_at(file, at + 8)?) {
            (0, _) => break,
            (DT_NEEDED, value) => names.push(value),
            (DT_STRTAB, value) => strings = Some(value),
            _ => {}
        }
    }
    let Some(strings) = strings else { return Ok(needs) };
    let table = segments
        .iter()
        .find(|s| s.kind == PT_LOAD && (s.address..s.address + s.size).contains(&strings))
        .map(|s| strings - s.address + s.offset)
        .context("string table outside of every segment")?;
    for name in names {
        needs.libraries.push(text_at(file, table + name)?);
    }
    Ok(needs)
}

fn segments(file: &[u8]) -> Result<Vec<Segment>> {
    let (offset, size, count) = (u64_at(file, 32)?, u16_at(file, 54)?, u16_at(file, 56)?);
    let mut segments = Vec::new();
    for index in 0..u64::from(count) {
        let at = offset + index * u64::from(size);
        let kind = u64_at(file, at)? & 0xffff_ffff;
        segments.push(Segment {
            kind: u32::try_from(kind).expect("masked to 32 bits"),
            offset: u64_at(file, at + 8)?,
            address: u64_at(file, at + 16)?,
            size: u64_at(file, at + 32)?,
        });
    }
    Ok(segments)
}

fn bytes_at<const N: usize>(file: &[u8], at: u64) -> Result<[u8; N]> {
    let start = usize::try_from(at).context("offset too large")?;
    let end = start.checked_add(N).context("offset too large")?;
    let bytes = file.get(start..end).context("offset outside of the file")?;
    Ok(bytes.try_into().expect("slice of N bytes"))
}

fn u64_at(file: &[u8], at: u64) -> Result<u64> {
    bytes_at(file, at).map(u64::from_le_bytes)
}

fn u16_at(file: &[u8], at: u64) -> Result<u16> {
    bytes_at(file, at).map(u16::from_le_bytes)
}

fn text_at(file: &[u8], at: u64) -> Result<String> {
    let start = usize::try_from(at).context("offset too large")?;
    let rest = file.get(start..).context("text outside of the file")?;
    let end = rest.iter().position(|byte| *byte == 0).context("text without end")?;
    String::from_utf8(rest[..end].to_vec()).context("text is not UTF-8")
}

/// All libraries `programs` need, and the loader: path in the image (under
/// `/usr`) → file on the build machine.
///
/// # Errors
/// A file that cannot be read or is no ELF file, or a library that is nowhere.
pub(crate) fn closure(programs: &[PathBuf]) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut queue: Vec<PathBuf> = programs.to_vec();
    while let Some(path) = queue.pop() {
        let file =
            std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let needs = needs(&file).with_context(|| format!("cannot parse {}", path.display()))?;
        if let Some(interpreter) = needs.interpreter {
            // The kernel follows the link /lib64 -> usr/lib64 of the image.
            let real = std::fs::canonicalize(&interpreter)
                .with_context(|| format!("no dynamic loader {interpreter}"))?;
            found.insert(format!("/usr{interpreter}"), real);
        }
        for library in needs.libraries {
            if !seen.insert(library.clone()) {
                continue;
            }
            let at = find_library(&library)
                .with_context(|| format!("{} needs {library}, found nowhere", path.display()))?;
            if !library.starts_with("ld-linux") {
                found.insert(format!("/usr/lib/x86_64-linux-gnu/{library}"), at.clone());
            }
            queue.push(at);
        }
    }
    Ok(found)
}

fn find_library(name: &str) -> Option<PathBuf> {
    let candidates = LIBRARY_FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    candidates.into_iter().find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_shell_needs_libc_and_the_loader() {
        let shell = std::fs::read("/bin/sh").unwrap();
        let needs = needs(&shell).unwrap();
        assert!(needs.libraries.contains(&"libc.so.6".to_owned()), "{needs:?}");
        assert!(needs.interpreter.unwrap().contains("ld-linux"));
    }

    #[test]
    fn the_closure_of_the_shell_holds_libc_and_the_loader_by_image_path() {
        let closure = closure(&[PathBuf::from("/bin/sh")]).unwrap();
        assert!(closure.contains_key("/usr/lib/x86_64-linux-gnu/libc.so.6"), "{closure:?}");
        assert!(closure.contains_key("/usr/lib64/ld-linux-x86-64.so.2"), "{closure:?}");
    }

    #[test]
    fn a_script_is_an_error_not_a_program_without_needs() {
        assert!(needs(b"#!/bin/sh\n").is_err());
    }

    proptest! {
        #[test]
        fn damaged_files_are_errors_and_never_panics(
            mut tail in proptest::collection::vec(any::<u8>(), 0..256),
        ) {
            let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1];
            file.append(&mut tail);
            let _ = needs(&file);
        }
    }
}
