//! One cell of the matrix: work, death, restart, and what must hold then.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::thread;

use fastrand::Rng;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::cells::{Cell, Scenario};
use crate::durability::TOPIC;
use crate::durability::ledger::{Ledger, Wrongs};
use crate::durability::load::Load;
use crate::durability::process::Process;
use crate::durability::verify::{take_what_is_due, verify};
use crate::side;
use crate::support::page_store::damage_page;
use crate::support::{Ran, arg, duewheel, until};

/// Confirmed changes after which there is something in pages, and something of that has left them.
const FILLED: usize = 2_500;

/// A store and what its clients were answered.
struct Store<'a> {
    crashing: &'a Path,
    directory: TempDir,
    ledger: Arc<Ledger>,
    random: Rng,
}

/// Lets the process die in this cell, and checks everything; what there was to check.
pub(crate) fn survive(crashing: &Path, cell: &Cell, seed: u64) -> String {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let ledger = Arc::new(Ledger::default());
    let mut store = Store { crashing, directory, ledger, random: Rng::with_seed(seed) };
    match &cell.scenario {
        Scenario::Load => store.dies_under_load(&cell.plan),
        Scenario::Stop => store.dies_while_it_stops(&cell.plan),
        Scenario::Creation => store.dies_while_it_starts(&cell.plan),
        Scenario::Recovery(death) => store.dies_while_it_recovers(death, &cell.plan),
        Scenario::Backup => store.backup_dies(&cell.plan),
        Scenario::Restore => store.restore_dies(&cell.plan),
        Scenario::Compact => store.compact_dies(&cell.plan),
        Scenario::SetAside => return store.set_aside_dies(&cell.plan),
    }
    store.is_whole();
    format!("{} confirmed, all there", store.ledger.confirmed())
}

impl Store<'_> {
    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// The program that dies at a point.
    fn program(&self, plan: &str) -> Command {
        let mut program = Command::new(self.crashing);
        // Of the environment it takes what the other one does.
        program.stdin(std::process::Stdio::null());
        duewheel().get_envs().for_each(|(name, value)| match value {
            Some(value) => drop(program.env(name, value)),
            None => drop(program.env_remove(name)),
        });
        program.env("DUEWHEEL_TEST_CRASH", plan);
        program
    }

    fn start(&self, program: Command) -> (Process, SocketAddr) {
        let broker = Process::start(program, &self.data());
        let (address, _) = broker.serves().unwrap_or_else(|log| panic!("it does not open:\n{log}"));
        (broker, address)
    }

    fn dies_under_load(&mut self, plan: &str) {
        let mut broker = Process::start(self.program(plan), &self.data());
        // The first commits come before it serves.
        if let Ok((address, _)) = broker.serves() {
            let (load, beside) = self.load(address);
            let ended = broker.ends();
            load.is_over();
            load.join();
            beside.join().expect("it does not panic");
            return died(&ended, plan);
        }
        died(&broker.ends(), plan);
    }

    fn dies_while_it_stops(&mut self, plan: &str) {
        let (mut broker, address) = self.start(self.program(plan));
        let (load, beside) = self.load(address);
        let enough = self.random.usize(500..FILLED);
        until("there is some load", || self.ledger.confirmed() > enough);
        broker.signal(Signal::TERM);
        let ended = broker.ends();
        load.is_over();
        load.join();
        beside.join().expect("it does not panic");
        died(&ended, plan);
    }

    fn dies_while_it_starts(&mut self, plan: &str) {
        died(&Process::start(self.program(plan), &self.data()).ends(), plan);
    }

    fn dies_while_it_recovers(&mut self, death: &str, plan: &str) {
        self.dies_under_load(death);
        // What a full disk and an interrupted `compact` leave behind is removed by every start.
        fs::write(self.data().join("pages/snap.0000000000000001.generating"), "").expect("it can be written");
        fs::create_dir(self.data().join("pages.new")).expect("it can be made");
        fs::write(self.data().join("pages.new/db"), "half a copy").expect("it can be written");
        self.dies_while_it_starts(plan);
    }

    fn backup_dies(&mut self, plan: &str) {
        let (mut broker, address) = self.filled();
        let file = self.directory.path().join("backup");
        let mut backup = self.program(plan);
        backup.args(["backup", arg(&file), "--endpoint", &format!("http://{address}")]);
        died(&ended(backup), plan);
        if file.exists() {
            // It had its name already, so it is whole.
            run(&["restore", "--check", arg(&file)]);
        }
        run(&["backup", "--force", arg(&file), "--endpoint", &format!("http://{address}")]);
        run(&["restore", "--check", arg(&file)]);
        assert!(!self.directory.path().join("backup.partial").exists());
        broker.kill();
    }

    fn restore_dies(&mut self, plan: &str) {
        let (mut broker, address) = self.filled();
        let file = self.directory.path().join("backup");
        run(&["backup", arg(&file), "--endpoint", &format!("http://{address}")]);
        broker.kill();
        fs::remove_dir_all(self.data()).expect("it is there");
        let mut restore = self.program(plan);
        restore.args(["restore", arg(&file), "--data-dir", arg(&self.data())]);
        died(&ended(restore), plan);
        let data = self.data();
        let args = ["restore", arg(&file), "--data-dir", arg(&data)];
        let again = Ran::of(duewheel().args(args).output().expect("the program runs"), &args);
        // After the very last step there is nothing to repeat.
        let is_complete = again.code == 78 && again.stderr.contains("not empty");
        assert!(again.code == 0 || is_complete && plan == "restore.unmarked", "{again:?}");
    }

    fn compact_dies(&mut self, plan: &str) {
        let mut broker = self.filled().0;
        if self.random.bool() {
            broker.signal(Signal::TERM);
            assert_eq!(broker.ends().0.code(), Some(0));
        }
        broker.kill();
        let mut compact = self.program(plan);
        compact.args(["compact", "--data-dir", arg(&self.data())]);
        died(&ended(compact), plan);
        if self.random.bool() {
            run(&["compact", "--data-dir", arg(&self.data())]);
        }
    }

    /// What was set aside is lost, and nothing else.
    fn set_aside_dies(&mut self, plan: &str) -> String {
        let mut broker = self.filled().0;
        broker.signal(Signal::TERM);
        assert_eq!(broker.ends().0.code(), Some(0));
        damage_page(&self.data(), self.random.usize(..));
        let mut check = self.program(plan);
        let data = self.data();
        let args = ["check", "--quarantine", "--yes", "--data-dir", arg(&data)];
        died(
            &ended({
                check.args(args);
                check
            }),
            plan,
        );
        let again = Ran::of(duewheel().args(args).output().expect("the program runs"), &args);
        assert!(again.code == 0 || again.code == 1, "{again:?}");
        run(&["check", "--data-dir", arg(&self.data())]);
        let (mut broker, address) = self.start(duewheel());
        self.ledger.be_quiet();
        verify(address, &self.ledger, &self.ledger.to_verify(&mut self.random, true));
        let stats = run(&["stats", TOPIC, "-o", "json", "--endpoint", &format!("http://{address}")]);
        broker.kill();
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
        let quarantined = stats["topics"][0]["quarantined"].as_u64().expect("a count");
        let wrongs = self.ledger.wrongs();
        assert_eq!(wrongs, Wrongs { lost: wrongs.lost, ..Wrongs::default() });
        assert!(quarantined > 0 && wrongs.lost as u64 == quarantined, "{wrongs}, and {quarantined} in quarantine");
        format!("{} confirmed, {quarantined} in quarantine, the others there", self.ledger.confirmed())
    }

    /// A load of every kind.
    fn load(&self, address: SocketAddr) -> (Load, thread::JoinHandle<()>) {
        create_topic(address);
        (Load::start(address, &self.ledger), side::start(address))
    }

    /// A broker that holds something of every kind, and has nothing to do.
    fn filled(&mut self) -> (Process, SocketAddr) {
        let (broker, address) = self.start(duewheel());
        create_topic(address);
        let load = Load::start(address, &self.ledger);
        until("it holds enough", || self.ledger.confirmed() > FILLED);
        load.is_over();
        load.join();
        (broker, address)
    }

    /// Starts the broker again and compares it with the ledger; then reads the whole store.
    fn is_whole(&mut self) {
        let (mut broker, address) = self.start(duewheel());
        verify(address, &self.ledger, &self.ledger.to_verify(&mut self.random, true));
        if self.ledger.confirmed() > 0 {
            take_what_is_due(address, &self.ledger);
        }
        broker.kill();
        assert_eq!(self.ledger.wrongs(), Wrongs::default(), "of {} confirmed", self.ledger.confirmed());
        assert!(!self.data().join("pages.new").exists() && !self.data().join("RESTORING").exists());
        run(&["check", "--data-dir", arg(&self.data())]);
    }
}

/// The broker may die on the way.
fn create_topic(address: SocketAddr) {
    let endpoint = format!("http://{address}");
    let _unknown = duewheel().args(["topic", "create", TOPIC, "--endpoint", &endpoint]).output();
}

/// Runs a command that must succeed; what it prints.
fn run(args: &[&str]) -> String {
    let ran = Ran::of(duewheel().args(args).output().expect("the program runs"), args);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.stdout
}

fn ended(mut command: Command) -> (ExitStatus, String) {
    let output = command.output().expect("the program runs");
    (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// It must have died at the point, and of nothing else.
fn died((status, log): &(ExitStatus, String), plan: &str) {
    let last = plan.rsplit(',').next().unwrap_or(plan);
    let point = last.split(':').next().unwrap_or(last);
    let said = format!("crash point {point} reached");
    let is_dead = status.signal() == Some(Signal::ABORT.as_raw()) && log.contains(&said);
    assert!(is_dead, "it did not die at {plan}: {status}\n{log}");
}
