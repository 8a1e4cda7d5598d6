//! The helper that serves a socket (rule X6), and that a service can be restarted (rule X5).

use std::io;
use std::time::Duration;

use supervisor::prelude::*;
use supervisor::testing::Harness;
use supervisor::{State, serve_unix};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

fn echo(path: std::path::PathBuf) -> Service {
    Service::new(Name::from_static("echo"), move |ctx: Context| {
        let path = path.clone();
        async move {
            serve_unix(ctx, &path, 0o600, |listener, draining| async move {
                let mut draining = std::pin::pin!(draining.wait());
                loop {
                    tokio::select! {
                        () = &mut draining => return Ok::<(), io::Error>(()),
                        accepted = listener.accept() => {
                            let (mut stream, _) = accepted?;
                            let mut byte = [0];
                            stream.read_exact(&mut byte).await?;
                            stream.write_all(&byte).await?;
                        }
                    }
                }
            })
            .await
        }
    })
}

async fn ask(path: &std::path::Path) -> io::Result<u8> {
    let mut stream = UnixStream::connect(path).await?;
    stream.write_all(b"x").await?;
    let mut byte = [0];
    stream.read_exact(&mut byte).await?;
    Ok(byte[0])
}

#[tokio::test(start_paused = true)]
async fn x5_x6_a_served_socket_is_there_again_after_each_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("echo.sock");
    // A stale socket of an earlier life.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let tree = Harness::start(vec![echo(path.clone())]);
    for _ in 0..3 {
        tree.reached("root.echo", State::Healthy).await;
        assert_eq!(ask(&path).await.unwrap(), b'x');
        tree.supervisor.restart(&Dn::from_static("root.echo")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(tree.node("root.echo").starts, 4);
    tree.end().await;
    assert!(!path.exists());
}

#[tokio::test(start_paused = true)]
async fn x6_something_else_at_the_path_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    let tree = Harness::start(vec![echo(path.clone())]);
    tree.may_die("root.echo");
    tree.settled().await;
    let death = tree.node("root.echo").last_death.clone().unwrap();
    assert!(death.text.contains("is no socket"), "{death:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    tree.end().await;
}
