//! The check finds nothing where nothing is wrong, and every damaged or lost value where it is needed.

use std::collections::BTreeSet;

use crate::queue::change::Change;
use crate::store::check::{CheckReport, check_with};
use crate::store::log::SegmentLog;
use crate::store::{Identity, keys};

use super::Media;
use super::quarantine::{damage, grown, parts};

fn check(media: &Media) -> CheckReport {
    let identity = Identity { store: [7; 16], secret: [9; 16] };
    let mut report = CheckReport::default();
    check_with(&media.log, &media.kv, &identity, &mut report, &mut |done, all| assert!(done <= all));
    report
}

#[test]
fn a_whole_store_has_no_finding_and_everything_is_counted() {
    for seed in 0..12 {
        let mut run = grown(seed);
        for _ in 0..5 {
            assert!(run.step());
        }
        if seed % 2 == 0 {
            run.restart();
        }
        let report = check(&run.media);
        assert_eq!(report.findings, [], "seed {seed}");
        assert_eq!(report.messages, run.paged.len() as u64, "seed {seed}");
        assert_eq!(report.pages, run.folder.pages() as u64);
        assert!(report.segments > 0 && report.commits > 0 && report.tombstones > 0 && report.index_entries > 0);
        for topic in &report.topics {
            assert_eq!(topic.totals, run.durable.totals.get(&topic.record.id).copied().unwrap_or_default());
        }
    }
}

#[test]
fn damaged_pages_are_named_with_the_number_of_their_messages_and_are_no_finding_once_set_aside() {
    for seed in 0..8 {
        let mut run = grown(seed);
        let mut expected: Vec<_> = damage(&mut run, 2).into_iter().map(|(_, live)| Some(live.len() as u64)).collect();
        let report = check(&run.media);
        let mut found: Vec<_> = report.findings.iter().filter(|finding| finding.part.is_some()).collect();
        assert_eq!(found.len(), report.findings.len(), "seed {seed}: {:?}", report.findings);
        found.sort_by_key(|finding| finding.messages);
        expected.sort_unstable();
        assert_eq!(found.iter().map(|finding| finding.messages).collect::<Vec<_>>(), expected, "seed {seed}");
        let told: BTreeSet<_> = report.findings.iter().filter_map(|finding| finding.part).collect();
        assert_eq!(told, parts(&run).into_iter().collect(), "seed {seed}");

        let changes: Vec<Change> = told.into_iter().map(Change::Quarantined).collect();
        assert!(run.commit(&changes) && run.freeze());
        let done = run.folder.run(run.job.take().expect("frozen")).expect("folds");
        run.committer.folded(done).expect("completes");
        let after = check(&run.media);
        assert_eq!(after.findings, [], "seed {seed}");
        let quarantined: u64 = after.topics.iter().map(|topic| topic.totals.quarantined).sum();
        assert_eq!(quarantined, expected.into_iter().flatten().sum::<u64>(), "seed {seed}");
        assert_eq!(after.messages + quarantined, report.messages + quarantined, "seed {seed}");
    }
}

#[test]
fn every_damaged_or_lost_value_is_found() {
    let mut checked = 0;
    for seed in 0..3 {
        let run = grown(seed);
        let whole = check(&run.media);
        assert_eq!(whole.findings, []);
        for (n, key) in run.media.kv.keys().into_iter().enumerate().filter(|(n, _)| n % 4 == seed as usize) {
            let media = run.media.copy();
            if n % 3 == 0 {
                media.kv.lose(&key);
            } else {
                media.kv.damage(&key, 6, 0x04);
            }
            let report = check(&media);
            // Of dead copies only the place counts.
            let is_needed = key[0] != keys::CHUNK;
            assert!(!report.findings.is_empty() || !is_needed, "seed {seed}: {key:02x?}");
            checked += 1;
        }
        for (file, _) in run.media.log.list() {
            let contents = run.media.log.read(file).expect("reads");
            if contents[..8] == [0; 8] {
                continue;
            }
            let media = run.media.copy();
            media.log.damage(file, 20, 1);
            assert!(!check(&media).findings.is_empty(), "seed {seed}: header of segment {file}");
        }
    }
    println!("{checked} values");
    assert!(checked > 100);
}
