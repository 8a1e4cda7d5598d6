//! The dashboard of an invented node on loopback, for working on its looks.
//!
//! `cargo run -p dashboard --example demo -- [port] [well|troubled|live]`. With `live` a service
//! dies and comes back every few seconds and the log goes on.

#[path = "../tests/fixture/mod.rs"]
mod fixture;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use logtree::{Dn, Name};
use supervisor::{Config, Handle, Service, Supervisor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let port: u16 = args.next().map_or(Ok(7840), |p| p.parse())?;
    let mood = args.next().unwrap_or_else(|| "live".to_owned());
    let now = Timestamp::now();
    let snapshot = if mood == "well" { fixture::well(now) } else { fixture::troubled(now) };
    let world = Arc::new(fixture::world(snapshot, now));
    fixture::write_log(&world.logs);
    let listen = SocketAddr::from(([127, 0, 0, 1], port));
    println!("http://{listen}/?token={}", world.access.token());

    let shown = world.clone();
    let root = Service::new(Name::from_static("root"), move |ctx| {
        let shown = shown.clone();
        async move {
            let (sources, access) = (shown.sources.clone(), shown.access.clone());
            ctx.run(dashboard::service(sources, access, listen)).await?;
            let running = ctx.healthy();
            Err(running.stop().stopped().await.into())
        }
    });
    let supervisor = Supervisor::start(root, Config::new(world.logs.clone(), 1));
    supervisor.runtime().block_on(async {
        let mut ill = mood != "well";
        let log = world.logs.logger(&Dn::new("root.kubernetes.worker.kubelet")?);
        for n in 0u64.. {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if mood != "live" {
                continue;
            }
            slog::info!(log, "SyncLoop"; "round" => n);
            if n % 7 == 6 {
                ill = !ill;
                let now = Timestamp::now();
                let next = if ill { fixture::troubled(now) } else { fixture::well(now) };
                world.tree.send_replace(Arc::new(next));
            }
        }
        Ok(())
    })
}
