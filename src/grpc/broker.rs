//! The broker as the services see it: recovering until its engine runs.

use std::sync::{Arc, OnceLock};

use super::errors::Fault;
use crate::engine::{EngineError, EngineHandle, Status};

/// Where the services find the engine. Clones share it.
#[derive(Clone, Default)]
pub struct Broker {
    engine: Arc<OnceLock<EngineHandle>>,
}

impl Broker {
    /// A broker that still reads its store: every call is refused as `RECOVERING`.
    #[must_use]
    pub fn recovering() -> Self {
        Self::default()
    }

    /// The store is read; from now on calls go to `engine`. May be called once.
    pub fn recovered(&self, engine: EngineHandle) {
        assert!(self.engine.set(engine).is_ok(), "a broker recovers once");
    }

    /// The engine, if it runs.
    pub(super) fn engine(&self) -> Result<&EngineHandle, Fault> {
        self.engine.get().ok_or_else(Fault::recovering)
    }
}

/// Waits until the engine takes no more work, and says why.
pub(super) async fn stopped(engine: EngineHandle) -> Fault {
    let mut status = engine.status();
    match status.wait_for(|status| *status != Status::Serving).await.as_deref() {
        Ok(Status::Failed(_)) => EngineError::OutcomeUnknown.into(),
        _ => EngineError::Draining.into(),
    }
}
