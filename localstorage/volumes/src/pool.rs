//! Where blocking jobs run: behind a trait, so that the owner task can be tested without a
//! supervisor.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use supervisor::{Handle, Name, Running};

use crate::owner::Completion;

/// A job that blocks.
pub(crate) type Job = Box<dyn FnOnce() -> Completion + Send>;
/// Its result; `None` if it panicked.
pub(crate) type JobFuture = Pin<Box<dyn Future<Output = Option<Completion>> + Send>>;

/// Runs blocking jobs that belong to the incarnation.
pub(crate) trait Pool: Send + Sync {
    /// Starts `job` at once.
    fn run(&self, name: &'static str, job: Job) -> JobFuture;
}

/// The supervisor's pool.
pub(crate) struct Supervised(pub(crate) Arc<Running>);

impl Pool for Supervised {
    fn run(&self, name: &'static str, job: Job) -> JobFuture {
        let job = self.0.spawn_blocking(Name::from_static(name), job);
        Box::pin(async move { job.await.ok() })
    }
}
