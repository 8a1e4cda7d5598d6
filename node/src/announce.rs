//! Lines that must reach people and tests whatever else works: markers and last words.
//!
//! Owner: PID 1. Invariants: writes whole lines straight to every console; a console that takes none for
//! half a second is left out for that line. Must not know: logs.
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

/// How long one line waits for one console.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// Writes lines to all consoles. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Announcer {
    consoles: Arc<Vec<File>>,
}

impl Announcer {
    /// Opens those of the consoles that open.
    pub fn open(names: &[String]) -> Announcer {
        let open = |name: &String| {
            let path = PathBuf::from("/dev").join(name);
            let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
            let flags = i32::try_from(flags.bits()).unwrap_or_default();
            OpenOptions::new().write(true).custom_flags(flags).open(path).ok()
        };
        Announcer { consoles: Arc::new(names.iter().filter_map(open).collect()) }
    }

    /// Writes one line to each console.
    pub fn line(&self, text: &str) {
        let line = format!("{text}\n");
        for console in self.consoles.iter() {
            // A console that fails has nobody to tell it to.
            let _ = write_patiently(console, line.as_bytes());
        }
    }
}

fn write_patiently(mut console: &File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match console.write(bytes) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::from_borrowed_fd(console.as_fd(), PollFlags::OUT)];
                if poll(&mut fds, Some(&PATIENCE))? == 0 {
                    return Err(e);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The consoles of a node, without `/dev/`, each once: those of the parameter, or the usual two and the
/// kernel's own.
pub fn console_names(parameter: &[String], command_line: &str) -> Vec<String> {
    let kernel = command_line
        .split_ascii_whitespace()
        .filter_map(|w| w.strip_prefix("console="))
        .map(|c| c.split(',').next().unwrap_or(c));
    let wanted: Vec<&str> = if parameter.is_empty() {
        ["tty0", "ttyS0"].into_iter().chain(kernel).collect()
    } else {
        parameter.iter().map(String::as_str).collect()
    };
    let mut names: Vec<String> = Vec::new();
    for name in wanted {
        if !name.is_empty() && !name.contains('/') && !names.iter().any(|n| n == name) {
            names.push(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b8_consoles_are_the_usual_ones_and_the_kernels_each_once() {
        let line = "console=ttyS0,115200 console=hvc0 quiet";
        assert_eq!(console_names(&[], line), ["tty0", "ttyS0", "hvc0"]);
        assert_eq!(console_names(&["ttyS1".to_owned()], line), ["ttyS1"]);
        assert_eq!(console_names(&[], "console=../x"), ["tty0", "ttyS0"]);
    }
}
