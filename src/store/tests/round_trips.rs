//! Every layout reads back what it wrote, and refuses what was cut short.

use crate::queue::change::{Closing, Totals};
use crate::queue::message::TopicId;
use crate::store::codec::{Malformed, Reader, put_u64, seal, unseal};
use crate::store::doubles::LossyKv;
use crate::store::keys::{self, Level, SlotKey};
use crate::store::kv::{Batch, Kv as _};
use crate::store::logged::{self, Logged};
use crate::store::records;
use crate::store::state::PagesState;

use super::samples::Samples;

fn check<T: PartialEq + std::fmt::Debug>(
    seed: u64,
    value: &T,
    bytes: &[u8],
    read: impl Fn(&mut Reader<'_>) -> Result<T, Malformed>,
) {
    let mut input = Reader::new(bytes);
    assert_eq!(read(&mut input).as_ref(), Ok(value), "seed {seed}");
    assert_eq!(input.finish(), Ok(()), "seed {seed}");
    let shorter = bytes.len() / 2;
    for cut in [0, shorter, bytes.len() - 1] {
        assert!(read(&mut Reader::new(&bytes[..cut])).is_err(), "seed {seed}: {cut} of {} bytes", bytes.len());
    }
}

fn written(put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes);
    bytes
}

#[test]
fn every_record_reads_back_as_it_was_written() {
    for seed in 0..400 {
        let samples = &mut Samples::new(seed);
        let message = samples.message();
        check(seed, &message, &written(|out| records::put_message(out, &message)), records::message);
        let topic = samples.topic(TopicId(seed as u32));
        check(seed, &topic, &written(|out| records::put_topic(out, &topic)), records::topic);
        let finished = samples.finished();
        check(seed, &finished, &written(|out| records::put_finished(out, &finished)), records::finished);
        let dedup = samples.dedup(TopicId(3));
        check(seed, &dedup, &written(|out| records::put_dedup(out, &dedup)), records::dedup);
        let lease = samples.lease();
        check(seed, &lease, &written(|out| records::put_lease(out, &lease)), records::lease);
        let totals = Totals { produced: samples.chance.number(), acked: seed, ..Totals::default() };
        check(seed, &totals, &written(|out| records::put_totals(out, &totals)), records::totals);
    }
}

#[test]
fn every_change_reads_back_as_it_was_written() {
    for seed in 0..400 {
        let samples = &mut Samples::new(seed);
        let (message, finished, dedup) = (samples.message(), samples.finished(), samples.dedup(TopicId(1)));
        let (topic, leases) = (samples.topic(TopicId(2)), vec![samples.lease(), samples.lease()]);
        let last = message.history.as_ref().and_then(|history| history.iter().last()).cloned();
        let (previous, at) = (finished.previous, finished.at);
        let suspected = seed.is_multiple_of(2).then_some((at, seed));
        let closing = Closing { at, leases, suspected };
        let arrival = message.id.arrival;
        let progress = message.progress;
        let part = samples.damaged_part();
        let cases = [
            (Logged::Topic(topic.clone()), written(|out| logged::log_topic(out, &topic))),
            (Logged::Produced(message.clone()), written(|out| logged::log_produced(out, &message))),
            (
                Logged::Moved { message: message.clone(), previous, entry: last.clone() },
                written(|out| logged::log_moved(out, &message, previous, last.as_ref())),
            ),
            (
                Logged::Progressed { arrival, progress, entry: last.clone() },
                written(|out| logged::log_progressed(out, &message, last.as_ref())),
            ),
            (Logged::Finished(finished.clone()), written(|out| logged::log_finished(out, &finished))),
            (Logged::Dedup(dedup.clone()), written(|out| logged::log_dedup(out, &dedup))),
            (Logged::Arrivals(arrival), written(|out| logged::log_arrivals(out, arrival))),
            (Logged::Opened { epoch: 7, at }, written(|out| logged::log_opened(out, 7, at))),
            (Logged::Closed(closing.clone()), written(|out| logged::log_closed(out, &closing))),
            (
                Logged::Carried { fold: 5, message: message.clone() },
                written(|out| logged::log_carried(out, 5, &message)),
            ),
            (Logged::Folded { fold: 5, through: 99 }, written(|out| logged::log_folded(out, 5, 99))),
            (Logged::Quarantined(part), written(|out| logged::log_quarantined(out, &part))),
            (
                Logged::TopicDeleted { topic: topic.id, in_pages: seed % 2 == 0 },
                written(|out| logged::log_topic_deleted(out, topic.id, seed % 2 == 0)),
            ),
        ];
        for (n, (value, bytes)) in cases.iter().enumerate() {
            assert_eq!(usize::from(bytes[0]), n + 1, "the numbers of the kinds are permanent");
            check(seed, value, bytes, Logged::read);
        }
    }
}

#[test]
fn random_bytes_are_refused_or_read_but_never_panic() {
    for seed in 0..2_000 {
        let samples = &mut Samples::new(seed);
        let mut bytes = written(|out| records::put_message(out, &samples.message()));
        for _ in 0..=samples.below(4) {
            let at = samples.below(bytes.len() as u64) as usize;
            bytes[at] = samples.below(256) as u8;
        }
        // Only that it returns is asked: the checksums tell damage.
        let _ = records::message(&mut Reader::new(&bytes));
        let _ = Logged::read(&mut Reader::new(&bytes));
    }
}

#[test]
fn numbers_keep_their_value_at_every_length_and_over_long_ones_are_refused() {
    for shift in 0..64 {
        for value in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
            check(0, &value, &written(|out| put_u64(out, value)), |input: &mut Reader<'_>| input.u64());
        }
    }
    assert!(Reader::new(&[0xff; 11]).u64().is_err());
    assert!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]).u64().is_err());
}

#[test]
fn a_sealed_value_shows_every_flipped_bit_and_a_wrong_key() {
    let sealed = seal(b"key", b"some payload");
    assert_eq!(unseal(b"key", &sealed), Ok(&b"some payload"[..]));
    assert!(unseal(b"kez", &sealed).is_err());
    for bit in 0..sealed.len() * 8 {
        let mut damaged = sealed.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(unseal(b"key", &damaged).is_err(), "bit {bit}");
    }
}

#[test]
fn slot_keys_sort_by_topic_level_and_time_and_read_back() {
    let key = |topic, level, start| SlotKey { topic: TopicId(topic), level, start };
    let sorted = [
        key(1, Level::Second, 1_000),
        key(1, Level::Second, 256_000),
        key(1, Level::Minute, 0),
        key(1, Level::Dead, 3_600_000),
        key(2, Level::Second, 0),
        key(256, Level::Second, 0),
    ];
    let encoded: Vec<_> = sorted.iter().map(|slot| slot.key(4, 9, 2)).collect();
    assert!(encoded.is_sorted());
    for (slot, bytes) in sorted.iter().zip(&encoded) {
        assert_eq!(SlotKey::parse(bytes), Some((*slot, 9, 2)));
    }
}

#[test]
fn the_state_of_the_pages_is_read_in_the_format_before() {
    let state = PagesState { run: 9, arrivals: 300, epoch: 7, ..PagesState::default() };
    let mut payload = state.encode();
    assert_eq!(payload.pop(), Some(0), "format 1 has no highest topic number");
    let mut kv = LossyKv::default();
    let mut batch = Batch::default();
    batch.put(vec![keys::STATE], seal(&[keys::STATE], &payload));
    kv.apply(batch).expect("it can be written");
    assert_eq!(PagesState::load(&kv), Ok(state));
}
