//! Brings the images of the node image into containerd.
//!
//! One one-shot child per archive, so that a broken one is seen by its own name in the tree. The
//! parent is done when all are.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use supervisor::prelude::*;
use supervisor::{Spawner, run_child};
use tokio::sync::watch;

use crate::specs;

/// Why no image was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImagesError {
    /// The directory of archives cannot be read.
    #[error("cannot list image archives in {dir}")]
    List {
        /// The directory.
        dir: PathBuf,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
}

/// Imports every archive of `dir`, then is done. containerd must be ready.
///
/// # Errors
/// The directory cannot be read. A failing import is its own node's failure and is tried again.
pub async fn run(ctx: Context, dir: PathBuf, spawner: Arc<dyn Spawner>) -> Outcome {
    let job = ctx.spawn_blocking(Name::from_static("list"), move || archives(&dir));
    let archives = job.await??;
    let wanted = archives.len();
    let (imported_tx, mut imported) = watch::channel(0_usize);
    for archive in archives {
        let service = import(archive, spawner.clone(), imported_tx.clone());
        match ctx.run(service).await {
            Ok(()) => {}
            Err(supervisor::AddError::Stopping(cancelled)) => return Err(cancelled.into()),
            Err(error) => return Err(error.into()),
        }
    }
    let running = ctx.healthy();
    let stop = running.stop();
    // The sender lives in this function, so the channel cannot close before the count is full.
    drop(stop.race(imported.wait_for(|n| *n >= wanted)).await?);
    Ok(running.done())
}

fn import(archive: PathBuf, spawner: Arc<dyn Spawner>, count: watch::Sender<usize>) -> Service {
    Service::new(name_of(&archive), move |ctx| {
        let (archive, spawner, count) = (archive.clone(), spawner.clone(), count.clone());
        async move {
            let done = run_child(ctx, specs::image_import(&archive), spawner).await?;
            count.send_modify(|n| *n += 1);
            Ok(done)
        }
    })
}

/// `pause` for `/usr/share/hamlet/images/pause.tar`.
fn name_of(archive: &Path) -> Name {
    Name::from_text(&archive.file_stem().unwrap_or(archive.as_os_str()).to_string_lossy())
}

/// All `*.tar` of a directory in the order of their names; none if there is no directory.
fn archives(dir: &Path) -> Result<Vec<PathBuf>, ImagesError> {
    let list = || -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "tar") {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    };
    match list() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(|source| ImagesError::List { dir: dir.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_found_in_order_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["pause.tar", "busybox.tar", "README", "x.tar.gz"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let found = archives(dir.path()).unwrap();
        let names: Vec<_> = found.iter().map(|p| name_of(p).to_string()).collect();
        assert_eq!(names, ["busybox", "pause"]);
    }

    #[test]
    fn a_node_without_images_is_fine() {
        assert!(archives(Path::new("/nonexistent/images")).unwrap().is_empty());
    }
}
