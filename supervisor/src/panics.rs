//! Panics of Runnables: caught at each poll, described by the hook (rules X3, F1).
//!
//! The hook is the only place that sees message, place and backtrace; it leaves them in a slot of
//! the thread, where the catcher of that poll picks them up. A panic outside of Runnables goes to
//! the hook that was installed before.

use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use logtree::{Dn, Level, LogTree, Record};

thread_local! {
    static CATCHING: Cell<u32> = const { Cell::new(0) };
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

static CAUGHT: AtomicU64 = AtomicU64::new(0);

/// Panics of Runnables caught since the start of the process.
pub fn caught_panics() -> u64 {
    CAUGHT.load(Ordering::Relaxed)
}

/// Whether a panic on this thread now would be caught as the death of a Runnable.
pub fn panic_is_caught() -> bool {
    CATCHING.with(|c| c.get() > 0)
}

/// Puts our hook before the present one; later calls do nothing. The hook belongs to the process,
/// and so does the log it writes to: that of the first tree.
pub(crate) fn install(logs: &LogTree) {
    static INSTALLED: Once = Once::new();
    let logs = logs.clone();
    INSTALLED.call_once(|| {
        let dn = Dn::from_static("panic");
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if panic_is_caught() {
                let text = describe(info);
                let mut record = Record::new(Level::Error, text.clone());
                record.fields.extend(logtree::current_dn().map(|dn| ("dn".into(), dn.to_string())));
                // Without the record the death still says it all.
                logs.append_or_give_up(&dn, record);
                LAST.with(|last| *last.borrow_mut() = Some(text));
            } else {
                previous(info);
            }
        }));
    });
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let place = match info.location() {
        Some(at) => format!(" at {}:{}", at.file(), at.line()),
        None => String::new(),
    };
    let backtrace = Backtrace::force_capture();
    format!("panicked{place}: {}\n{backtrace}", payload_text(info.payload()))
}

fn payload_text(payload: &(dyn Any + Send)) -> &str {
    if let Some(text) = payload.downcast_ref::<&str>() {
        text
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text
    } else {
        "(payload is no text)"
    }
}

/// Runs `f`; a panic in it becomes its description, whatever its payload.
pub(crate) fn catch<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    CATCHING.with(|c| c.set(c.get() + 1));
    // Unwind safety: what `f` touches is dropped after a panic and never looked at again.
    let result = catch_unwind(AssertUnwindSafe(f));
    CATCHING.with(|c| c.set(c.get() - 1));
    result.map_err(|payload| {
        CAUGHT.fetch_add(1, Ordering::Relaxed);
        let described = LAST.with(|last| last.borrow_mut().take());
        let text = described.unwrap_or_else(|| format!("panicked: {}", payload_text(&*payload)));
        // The payload may panic in its own Drop; forgetting it costs a few bytes once.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x3_any_payload_is_caught_and_described() {
        install(&LogTree::new(Default::default()));
        assert_eq!(catch(|| 7), Ok(7));
        let text = catch(|| panic!("bad {}", 1)).unwrap_err();
        assert!(text.starts_with("panicked at "), "{text}");
        assert!(text.contains("panics.rs") && text.contains("bad 1"), "{text}");
        let text = catch(|| std::panic::panic_any(5u8)).unwrap_err();
        assert!(text.contains("no text"), "{text}");
        assert!(!panic_is_caught());
    }
}
