//! Services the tests of the tree share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use supervisor::prelude::*;

pub(crate) type Order = Arc<parking_lot::Mutex<Vec<String>>>;

/// Notes its name when it is stopped.
pub(crate) fn named(name: &'static str, order: Order) -> Service {
    Service::new(Name::from_static(name), move |ctx: Context| {
        let order = order.clone();
        async move {
            let running = ctx.healthy();
            let cancelled = running.stop().stopped().await;
            order.lock().push(name.to_owned());
            Err(cancelled.into())
        }
    })
}

/// `n5` with `n4` in it, and so on; counts runs and notes the order of stops.
pub(crate) fn nest(depth: usize, built: Arc<AtomicU32>, order: Order) -> Service {
    let name = Name::from_text(&format!("n{depth}"));
    let own = name.clone();
    Service::new(name, move |ctx: Context| {
        let (built, order, own) = (built.clone(), order.clone(), own.clone());
        async move {
            built.fetch_add(1, Ordering::Relaxed);
            if depth > 1 {
                let inner = nest(depth - 1, built, order.clone());
                if let Err(AddError::Stopping(c)) = ctx.run(inner).await {
                    return Err(c.into());
                }
            }
            let running = ctx.healthy();
            let cancelled = running.stop().stopped().await;
            order.lock().push(own.to_string());
            Err(cancelled.into())
        }
    })
}
