//! Counts and lateness of all topics, a page at a time.

use super::errors::Fault;
use super::page_token::{self, page_size_or};
use super::to_wire;
use crate::engine::EngineHandle;
use crate::pb;
use crate::queue::limits::MAX_PAGE_SIZE;

/// A page of the topics by name, and the broker.
pub(super) async fn page(engine: &EngineHandle, size: u32, token: &str) -> Result<pb::GetStatsResponse, Fault> {
    let size = page_size_or(MAX_PAGE_SIZE, size)?;
    let after = page_token::parse_stats(token)?;
    let mut stats = engine.stats_after(after, size + 1).await??;
    let last = page_token::cut(&mut stats.topics, size);
    let next = last.map(|last| page_token::stats_after(&last.counts.topic.name)).unwrap_or_default();
    Ok(to_wire::stats(&stats, next))
}
