//! Test operation `test.run`: runs a program of a test image in the guest and tells how it ended.
//!
//! Owner: the channel's call. Invariants: the child is the reaper's like any other; dropping the call
//! kills it; of its output only the end is kept. Compiled only with feature `faults`.
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use logtree::Dn;
use serde_json::{Value, json};
use supervisor::{ChildSpec, Spawner};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::answer::Refusal;
use super::ops::{Arguments, Node};

/// Bytes of the output's end that are told.
const KEPT: usize = 48 << 10;

/// Runs `program` with `args` to its end.
pub(crate) async fn run(node: &Node, a: &Arguments) -> Result<Value, Refusal> {
    let bad = |text: &str| Refusal::new("bad_request", text);
    let program = a.get("program").and_then(Value::as_str);
    let program = program.ok_or_else(|| bad("program must be a text"))?;
    let args = a.get("args").and_then(Value::as_array).into_iter().flatten();
    let args = args.map(|v| v.as_str().map(str::to_owned)).collect::<Option<Vec<String>>>();
    let args = args.ok_or_else(|| bad("args must be texts"))?;
    let io = |e: io::Error| Refusal::new("io", e.to_string());
    let dn = Dn::new("root.test-run").map_err(|e| bad(&e.to_string()))?;
    let mut child =
        node.shared.machine.spawner.spawn(&dn, &ChildSpec::new(program).args(args)).map_err(io)?;
    let (out, err) = (child.take_stdout(), child.take_stderr());
    let (out, err, status) = tokio::join!(tail(out), tail(err), child.wait());
    Ok(json!({
        "code": status.code(),
        "stdout": out.map_err(io)?,
        "stderr": err.map_err(io)?,
    }))
}

/// Reads to the end and keeps the last bytes.
async fn tail(fd: Option<OwnedFd>) -> io::Result<String> {
    let mut kept = VecDeque::new();
    if let Some(fd) = fd {
        let mut pipe = pipe::Receiver::from_owned_fd(fd)?;
        let mut buffer = [0; 8192];
        loop {
            let n = pipe.read(&mut buffer).await?;
            if n == 0 {
                break;
            }
            kept.extend(buffer.iter().take(n));
            let excess = kept.len().saturating_sub(KEPT);
            kept.drain(..excess);
        }
    }
    let bytes: Vec<u8> = kept.into();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
