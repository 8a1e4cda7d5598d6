//! Named crash points (`create.c8`), for tests: a hook that may kill the node or panic.
//!
//! Without the feature `faults` everything here compiles to nothing.

/// Called with the name of each point that is passed.
#[cfg(feature = "faults")]
pub type FaultHook = std::sync::Arc<dyn Fn(&str) + Send + Sync>;

/// The hook of one engine.
#[derive(Clone, Default)]
pub struct Faults {
    #[cfg(feature = "faults")]
    hook: Option<FaultHook>,
}

impl Faults {
    /// A hook that is called with the name of each point after the step of that name. It may
    /// panic or never return.
    #[cfg(feature = "faults")]
    pub fn new(hook: FaultHook) -> Faults {
        Faults { hook: Some(hook) }
    }

    /// Passes the point `name`.
    #[cfg(feature = "faults")]
    pub(crate) fn point(&self, name: &str) {
        if let Some(hook) = &self.hook {
            hook(name);
        }
    }

    /// Passes the point `name`: nothing.
    #[cfg(not(feature = "faults"))]
    #[inline]
    pub(crate) fn point(&self, _name: &str) {}
}
