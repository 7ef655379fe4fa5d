//! What is no request at all.

use bytes::{Buf, BufMut, Bytes};
use duewheel::pb;
use duewheel::pb::queue_service_client::QueueServiceClient;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Status};

use super::grpc_harness::{Running, message, produce, within};

/// Sends bytes as they are.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buf.copy_to_bytes(buf.remaining())))
    }
}

#[tokio::test]
async fn what_is_no_request_at_all_gets_a_clean_status_and_the_connection_lives() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let channel = broker.connect().await;
    // A produce to "orders" of one message that has only this.
    let with = |field: &[u8]| {
        let mut bytes = b"\x0a\x06orders\x12".to_vec();
        bytes.push(field.len().try_into().expect("short"));
        bytes.extend(field);
        bytes
    };
    let cases: [(&str, &str, Vec<u8>, Code, &str); 9] = [
        ("an unknown method", "Nothing", vec![], Code::Unimplemented, ""),
        ("a cut field", "Produce", vec![0x0a, 0x7f, b'x'], Code::Internal, "topic"),
        ("a topic that is not UTF-8", "Produce", vec![0x0a, 1, 0xff], Code::Internal, "topic"),
        ("a key that is not UTF-8", "Produce", with(&[0x0a, 1, 0xff]), Code::Internal, "key"),
        ("a header that is not UTF-8", "Produce", with(&[0x1a, 3, 0x0a, 1, 0xff]), Code::Internal, "headers"),
        ("a dedup id that is not UTF-8", "Produce", with(&[0x4a, 1, 0xff]), Code::Internal, "dedup_id"),
        ("a delay that is a text", "Produce", with(&[0x22, 3, b'N', b'a', b'N']), Code::Internal, "first_wait"),
        ("a wrong wire type", "Ack", vec![0x0f], Code::Internal, ""),
        ("more than the limit", "Produce", vec![0; 17 * 1024 * 1024], Code::OutOfRange, "16842752"),
    ];
    for (what, method, bytes, code, says) in cases {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.expect(what);
        let path = format!("/duewheel.v1.QueueService/{method}").parse().expect("a path");
        let status = within(client.unary(Request::new(Bytes::from(bytes)), path, Raw)).await.expect_err(what);
        println!("{what}\t{:?}\t\t\t{}", status.code(), status.message());
        assert_eq!(status.code(), code, "{what}: {status:?}");
        assert!(status.message().contains(says), "{what}: {status:?}");
    }
    let mut queue = QueueServiceClient::new(channel);
    produce(&mut queue, "orders", vec![message("k", "still works")]).await;
    assert_eq!(broker.stats("orders").await.produced, 1);
    broker.stop().await.expect("a clean end");
}
