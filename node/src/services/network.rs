//! Runnable `network`: gives the first network card its static address and the default route.
//!
//! Invariants: idempotent; a node without a card is degraded, not dead. Must not know: who uses the
//! network.
use std::fs;
use std::io;
use std::path::Path;

use nodesys::net::Interfaces;
use slog::info;
use supervisor::prelude::*;
use tokio::sync::watch;

use crate::params::NetworkParameters;

/// The network cannot be set up.
#[derive(Debug, thiserror::Error)]
enum NetworkError {
    #[error("cannot list network cards")]
    List(#[source] io::Error),
    #[error("cannot set {what} of {card}")]
    Set {
        what: &'static str,
        card: String,
        #[source]
        source: io::Error,
    },
}

/// The service. `up` becomes true when the address is there.
pub fn service(parameters: NetworkParameters, up: watch::Sender<bool>) -> Service {
    Service::new(Name::from_static("network"), move |ctx| run(ctx, parameters, up.clone()))
}

async fn run(ctx: Context, parameters: NetworkParameters, up: watch::Sender<bool>) -> Outcome {
    let card = first_card(Path::new("/sys/class/net")).map_err(NetworkError::List)?;
    let Some(card) = card else {
        ctx.health().set(Condition::degraded("NoCard", "this machine has no network card"));
        let running = ctx.healthy();
        return Err(running.stop().stopped().await.into());
    };
    set_up(&card, parameters)?;
    info!(ctx.log(), "{} has {}/{}", card, parameters.address, parameters.prefix);
    up.send_replace(true);
    let running = ctx.healthy();
    Err(running.stop().stopped().await.into())
}

fn set_up(card: &str, p: NetworkParameters) -> Result<(), NetworkError> {
    let at = |what| move |source| NetworkError::Set { what, card: card.to_owned(), source };
    let interfaces = Interfaces::open().map_err(at("anything"))?;
    interfaces.up(card).map_err(at("the state up"))?;
    interfaces.set_address(card, p.address, p.prefix).map_err(at("the address"))?;
    if let Some(gateway) = p.gateway {
        interfaces.add_default_route(gateway).map_err(at("the default route"))?;
    }
    Ok(())
}

/// The first interface by name that has a device behind it; virtual ones have none.
fn first_card(class: &Path) -> io::Result<Option<String>> {
    let mut cards = Vec::new();
    for entry in fs::read_dir(class)? {
        let entry = entry?;
        if entry.path().join("device").exists() {
            cards.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    cards.sort();
    Ok(cards.into_iter().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_card_with_a_device_is_taken_and_virtual_ones_are_not() {
        let t = tempfile::tempdir().unwrap();
        assert_eq!(first_card(t.path()).unwrap(), None);
        for name in ["lo", "eth1/device", "eth0/device", "cni0"] {
            fs::create_dir_all(t.path().join(name)).unwrap();
        }
        assert_eq!(first_card(t.path()).unwrap().as_deref(), Some("eth0"));
    }
}
