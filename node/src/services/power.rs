//! Runnable `power`: the machine's power button (rule Q1).
//!
//! Must not know: what a shutdown is.
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use slog::info;
use supervisor::prelude::*;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::readiness;
use crate::shutdown::{EndRequests, Reason};

/// From linux/input-event-codes.h.
const EV_KEY: u16 = 1;
const KEY_POWER: u16 = 116;

/// struct input_event on 64-bit machines: two words of time, type, code, value.
const EVENT_BYTES: usize = 24;

/// The service.
pub fn service(ends: EndRequests) -> Service {
    let mut service = Service::new(Name::from_static("power"), move |ctx| run(ctx, ends.clone()));
    service.policy.critical = false;
    service
}

async fn run(ctx: Context, ends: EndRequests) -> Outcome {
    let buttons = buttons(Path::new("/sys/class/input"))?;
    if buttons.is_empty() {
        ctx.health().note("this machine has no power button");
    }
    for name in buttons {
        let device = open(&Path::new("/dev/input").join(&name))?;
        info!(ctx.log(), "power button at {}", name);
        let (stop, ends) = (ctx.stop(), ends.clone());
        ctx.spawn(Name::from_text(&name), async move { stop.race(listen(device, ends)).await? });
    }
    let running = ctx.healthy();
    Err(running.stop().stopped().await.into())
}

/// Input devices with a power key.
fn buttons(class: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(class) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(found),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("event") {
            continue;
        }
        let keys = fs::read_to_string(entry.path().join("device/capabilities/key"));
        if keys.is_ok_and(|text| has_key(&text, KEY_POWER)) {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

/// sysfs shows the bitmap as 64-bit words in hexadecimal, the highest first.
fn has_key(bitmap: &str, key: u16) -> bool {
    let word = bitmap.split_ascii_whitespace().rev().nth(usize::from(key / 64));
    word.and_then(|w| u64::from_str_radix(w, 16).ok()).is_some_and(|w| w >> (key % 64) & 1 == 1)
}

fn open(path: &PathBuf) -> io::Result<AsyncFd<File>> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    readiness::watch(file, Interest::READABLE)
}

async fn listen(device: AsyncFd<File>, ends: EndRequests) -> Result<(), Stop> {
    let mut buffer = [0; EVENT_BYTES * 16];
    loop {
        let mut ready = device.readable().await?;
        // Would block: the guard has noted it, wait again.
        let Ok(read) = ready.try_io(|d| d.get_ref().read(&mut buffer)) else { continue };
        let events = buffer.get(..read?).unwrap_or_default();
        if events.chunks_exact(EVENT_BYTES).any(is_power_press) {
            ends.ask(Reason::PowerButton, "the power button was pressed");
        }
    }
}

fn is_power_press(event: &[u8]) -> bool {
    let half = |at: usize| match event.get(at..at + 2) {
        Some([low, high]) => u16::from_ne_bytes([*low, *high]),
        _ => 0,
    };
    // The value is 32 bits: 1 pressed, 0 released, 2 repeated.
    half(16) == EV_KEY && half(18) == KEY_POWER && half(20) == 1 && half(22) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q1_only_a_press_of_the_power_key_counts() {
        let event = |kind: u16, code: u16, value: i32| {
            let mut e = vec![9; 16];
            e.extend(kind.to_ne_bytes());
            e.extend(code.to_ne_bytes());
            e.extend(value.to_ne_bytes());
            e
        };
        assert!(is_power_press(&event(1, 116, 1)));
        assert!(!is_power_press(&event(1, 116, 0)));
        assert!(!is_power_press(&event(1, 116, 2)));
        assert!(!is_power_press(&event(1, 115, 1)));
        assert!(!is_power_press(&event(0, 116, 1)));
        assert!(!is_power_press(&[0; 3]));
    }

    #[test]
    fn q1_a_button_is_known_by_its_bitmap_of_keys() {
        // As the ACPI power button shows it: bit 116 = bit 52 of the second word.
        assert!(has_key("10000000000000 0\n", KEY_POWER));
        assert!(!has_key("10000000000000\n", KEY_POWER));
        assert!(!has_key("0 0 0\n", KEY_POWER));
        assert!(!has_key("", KEY_POWER));
    }
}
