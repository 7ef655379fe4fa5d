//! The typed client of a broker: produce, consume, settle, find, administer.
//!
//! A [`Client`] is one multiplexed connection; cloning it is cheap and shares the connection, which is made
//! anew by itself when it breaks. Three things make up most programs:
//!
//! - [`Client::produce`], or a pipelined [`Producer`] for many messages. With a `dedup_id` a produce may be
//!   repeated until it is answered; without one, an answer that got lost leaves the outcome unknown.
//! - [`Client::consume`], which opens a [`Consumer`]: messages are pushed up to a window, settlements are
//!   batched into frames and answered one by one, and a broken stream is opened again by itself.
//! - [`Client::cancel`] and [`Client::reschedule`] by business key, for when the news comes before the timer.
//!
//! Every answer means that the effect is durable. Every failure is an [`Error`], which tells the code, the
//! stable reason, the field, and above all the [`Outcome`]: done, not done, or unknown.
//!
//! What people read rather than programs (topics, statistics, the state of a message) is handed out in the
//! generated form of [`crate::pb`].
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use duewheel::client::{Client, Due, MessageRef, Nack, NewMessage, Options, Window};
//!
//! # async fn query_channel(_order: &str) -> Option<bool> { None }
//! # async fn example() -> Result<(), duewheel::client::Error> {
//! let client = Client::connect(Options::default()).await?;
//!
//! // A payment got lost: ask the channel in a second, and then along the topic's schedule.
//! let order = NewMessage::new(r#"{"amount":1999}"#).key("ORD-1").dedup_id("ORD-1").due(Due::In(Duration::from_secs(1)));
//! let produced = client.produce("dropped-orders", order).await?;
//! println!("{} is due at {}", produced.id, produced.due_at);
//!
//! // The compensator, usually another process.
//! let mut consumer = client.consume("compensator-1", [Window::new("dropped-orders", 100)]).await?;
//! loop {
//!     let delivery = consumer.next().await?;
//!     match query_channel(delivery.key.as_deref().unwrap_or_default()).await {
//!         Some(_paid_or_failed) => drop(delivery.ack().await?),
//!         None => drop(delivery.nack(Nack::not_yet().text("still processing")).await?),
//!     }
//! #   break;
//! }
//!
//! // The channel's notification came first after all.
//! client.cancel("dropped-orders", MessageRef::key("ORD-1"), true).await?;
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use tonic::transport::Channel;

use crate::pb::admin_service_client::AdminServiceClient;
use crate::pb::queue_service_client::QueueServiceClient;

pub use self::admin::MessageFilter;
pub use self::backoff::Backoff;
pub use self::backup::Backup;
pub use self::consume::{Consumer, Window};
pub use self::convert::{instant, signed_span, signed_span_ms, span, span_ms, tiers, tiers_text, timestamp};
pub use self::dead::Answers;
pub use self::deliver::{Acked, Delivery, Fetch, Nack, Nacked};
pub use self::error::{Error, Outcome};
pub use self::find::{CancelAnswer, Ended, MessageRef, RescheduleAnswer};
pub use self::options::{DEFAULT_ENDPOINT, Options};
pub use self::produce::{Due, NewMessage, Produced};
pub use self::producer::{PendingProduce, Producer};

mod admin;
mod backoff;
mod backup;
mod consume;
mod convert;
mod dead;
mod deliver;
mod error;
mod find;
mod options;
mod produce;
mod producer;
mod stream;

/// A connection to a broker; clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    options: Options,
    channel: Channel,
}

impl Client {
    /// Connects to a broker.
    ///
    /// # Errors
    /// The endpoint is malformed (`field` is `endpoint`), or no connection could be made
    /// ([`Error::is_unreachable`]).
    pub async fn connect(options: Options) -> Result<Self, Error> {
        let channel = options.to_endpoint()?.connect().await.map_err(|error| Error::unreachable(&error))?;
        Ok(Self { options, channel })
    }

    /// A client that connects when it is first used.
    ///
    /// # Errors
    /// The endpoint is malformed.
    pub fn connect_lazy(options: Options) -> Result<Self, Error> {
        let channel = options.to_endpoint()?.connect_lazy();
        Ok(Self { options, channel })
    }

    /// How this client connects.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    fn queue(&self) -> QueueServiceClient<Channel> {
        QueueServiceClient::new(self.channel.clone()).max_decoding_message_size(options::MAX_FRAME_BYTES)
    }

    fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone()).max_decoding_message_size(options::MAX_FRAME_BYTES)
    }

    /// A request that ends after the request timeout.
    fn request<T>(&self, message: T) -> tonic::Request<T> {
        self.request_lasting(message, Duration::ZERO)
    }

    /// A request that the broker may answer up to `extra` later than others.
    fn request_lasting<T>(&self, message: T, extra: Duration) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.set_timeout(self.options.request_timeout + extra);
        request
    }
}
