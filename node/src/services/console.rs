//! Runnable `console-<dev>`: tells how the writer of one console does.
//!
//! The writer itself is a thread of PID 1, because it must outlive the tree for the last words.
use supervisor::prelude::*;

use crate::console::ConsoleInfo;

/// The service of one console.
pub fn service(console: ConsoleInfo) -> Service {
    let name = format!("console-{}", console.name.to_ascii_lowercase());
    let name = Name::new(&name).unwrap_or_else(|_| Name::from_text(&name));
    let mut service = Service::new(name, move |ctx| run(ctx, console.clone()));
    service.policy.critical = false;
    service
}

async fn run(ctx: Context, console: ConsoleInfo) -> Outcome {
    let mut missed = console.missed.clone();
    let running = ctx.healthy();
    let stop = running.stop();
    loop {
        let count = *missed.borrow_and_update();
        if count > 0 {
            let text = format!("{count} entries missed: the console is slower than the log");
            running.health().note(&text);
        }
        match stop.race(missed.changed()).await? {
            Ok(()) => {}
            // The writer has ended: its device is gone.
            Err(_) => {
                let text = format!("/dev/{} takes no lines any more", console.name);
                running.health().set(Condition::degraded("ConsoleGone", text));
                return Err(stop.stopped().await.into());
            }
        }
    }
}
