//! `duewheel broker`: what runs.

use serde::Serialize;

use super::clock::ClockView;
use super::exit::Failure;
use super::limits_view::LimitsView;
use super::output::{Format, Sheet, print_sheet, table};
use super::session::Session;
use crate::client::{span_ms, timestamp};
use crate::pb;
use crate::queue::schedule::format_duration;
use crate::queue::time::Timestamp;

/// Runs `broker`.
pub(super) async fn run(session: &Session) -> Result<(), Failure> {
    let client = session.connect().await?;
    let broker = client.broker().await.map_err(|error| Failure::call("ask about the broker", &error))?;
    let view = BrokerView::new(broker);
    print_sheet(session.format, &view)?;
    if session.format == Format::Table {
        let rows = view.limits.0.iter().map(|(name, limit)| vec![(*name).to_owned(), limit.text()]);
        println!("\n{}", table(&["limit", "value"], rows));
    }
    Ok(())
}

#[derive(Serialize)]
struct BrokerView {
    version: String,
    epoch: u32,
    data_format: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    opening_ms: u64,
    clock: ClockView,
    disk_free_bytes: u64,
    disk_reserve_bytes: u64,
    produce_refused: bool,
    limits: LimitsView,
}

impl BrokerView {
    fn new(broker: pb::BrokerInfo) -> Self {
        Self {
            started_at: broker.started_at.as_ref().map(timestamp).map(Timestamp::to_rfc3339),
            opening_ms: broker.opening.as_ref().map_or(0, span_ms),
            clock: ClockView::new(&broker.clock.unwrap_or_default()),
            limits: LimitsView::new(&broker.limits.unwrap_or_default()),
            version: broker.version,
            epoch: broker.epoch,
            data_format: broker.data_format,
            disk_free_bytes: broker.disk_free_bytes,
            disk_reserve_bytes: broker.disk_reserve_bytes,
            produce_refused: broker.produce_refused,
        }
    }
}

impl Sheet for BrokerView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("version", self.version.clone()),
            ("start of the store", self.epoch.to_string()),
            ("data format", self.data_format.to_string()),
            ("started at", self.started_at.clone().unwrap_or_default()),
            ("opening took", format_duration(self.opening_ms)),
        ];
        lines.extend(self.clock.lines());
        let disk = if self.disk_free_bytes == 0 {
            "not watched".to_owned()
        } else {
            format!("{} bytes free, reserve {}", self.disk_free_bytes, self.disk_reserve_bytes)
        };
        lines.push(("disk", disk));
        lines
            .push(("produce", if self.produce_refused { "refused: the disk is short" } else { "accepted" }.to_owned()));
        lines
    }
}
