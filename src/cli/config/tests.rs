//! Sources and their order, places of problems, and the example file.

use prost::Message as _;

use super::*;
use crate::queue::fields::{TopicField, TopicPatch};
use crate::queue::settings::TopicSettings;

const EXAMPLE: &str = include_str!("../../../docs/duewheel.toml");

fn nothing(_: &str) -> Option<OsString> {
    None
}

/// The configuration of a file with that text.
fn read(text: &str) -> Result<Config, Problems> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("duewheel.toml");
    std::fs::write(&path, text).expect("a writable directory");
    let prefix = format!("{}/", directory.path().display());
    let strip = |problem: String| problem.replace(&prefix, "");
    Config::read(&ServeArgs { config: Some(path), ..ServeArgs::default() }, nothing)
        .map_err(|problems| Problems(problems.0.into_iter().map(strip).collect()))
}

fn flag(key: &str, text: &str) -> (&'static Setting, String) {
    (setting(key).expect("a setting"), text.to_owned())
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("duewheel.toml");
    std::fs::write(&path, "listen = '127.0.0.1:1'\nhttp_listen = '127.0.0.1:2'\ndata_dir = 'f'\n\nmax_body = 7\n")
        .expect("a writable directory");
    let flags = vec![flag("listen", "127.0.0.1:3")];
    let args = ServeArgs { config: Some(path.clone()), flags, ..ServeArgs::default() };
    let variable = |name: &str| match name {
        "DUEWHEEL_LISTEN" => Some("127.0.0.1:4".into()),
        "DUEWHEEL_HTTP_LISTEN" => Some("127.0.0.1:5".into()),
        _ => None,
    };
    let config = Config::read(&args, variable).expect("well formed");
    assert_eq!((config.server.listen.port(), config.server.http_listen.port()), (3, 5));
    assert_eq!(config.server.data_dir, PathBuf::from("f"));
    assert_eq!(config.server.limits.max_body_bytes, 7);
    assert_eq!(config.server.drain_deadline, server::Settings::default().drain_deadline);

    let printed = print(&config);
    for line in [
        "listen = \"127.0.0.1:3\" # --listen".to_owned(),
        "http_listen = \"127.0.0.1:5\" # environment DUEWHEEL_HTTP_LISTEN".to_owned(),
        format!("max_body = 7 # {}:5", path.display()),
        "drain_timeout = \"10s\" # default".to_owned(),
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line} is not in\n{printed}");
    }
}

#[test]
fn a_printed_configuration_gives_the_same_configuration() {
    let text = "max_body = 0x1_0\npage_cache = '3MiB'\ninsecure = true\nclock_policy = 'adopt'\nlog_level = 'info,a=\"b\"'\n\
        data_dir = 'a \"b\" \\ ü'\n[topics.\"pay.wechat\"]\nschedule = '1s,2s'\nconcurrency = 'none'\nrate = '20/s'\n\
        dead_releases_key = true\n[topics.plain]\n";
    let text = text.replace("log_level = 'info,a=\"b\"'\n", "log_level = 'info,duewheel=debug'\n");
    let config = read(&text).expect("well formed");
    assert_eq!(config.server.limits.max_body_bytes, 16);
    let again = read(&print(&config)).expect("a printed configuration is well formed");
    assert_eq!(config.differences(&again), []);
    assert_eq!(config.server.topics, again.server.topics);
    assert_eq!(again.server.topics.len(), 2);
    assert_eq!(print(&Config::default()).matches("# default").count(), SETTINGS.len());
}

#[test]
fn every_problem_of_the_file_is_told_with_its_line_and_column() {
    for (text, want) in [
        ("lisen = '127.0.0.1:1'", "duewheel.toml:1:1: lisen: there is no such setting; did you mean 'listen'?"),
        ("\n  port = 1", "duewheel.toml:2:3: port: there is no such setting"),
        ("listen = 7383", "duewheel.toml:1:10: listen: a text in quotes is expected, not a whole number"),
        ("max_topics = '9'", "duewheel.toml:1:14: max_topics: a whole number is expected, not a text"),
        ("max_topics = 9.5", "duewheel.toml:1:14: max_topics: a whole number is expected, not a number with decimals"),
        ("max_topics = -1", "duewheel.toml:1:14: max_topics: '-1' is not a whole number from 1 to 100000"),
        ("insecure = 'yes'", "duewheel.toml:1:12: insecure: true or false is expected, not a text"),
        ("[listen]", "duewheel.toml:1:1: listen: a text in quotes is expected, not a table"),
        ("max_body = '9MiB'", "duewheel.toml:1:12: max_body: '9MiB' is out of range; 1 to 1MiB"),
        ("max_delay = '9999d'", "duewheel.toml:1:13: max_delay: '9999d' is out of range; 1ms to 3653d"),
        ("topics = 1", "duewheel.toml:1:10: topics: tables [topics.\"NAME\"] are expected, not a whole number"),
        ("[topics]\na = 1", "duewheel.toml:2:5: topics.\"a\": a table of settings is expected, not a whole number"),
        (
            "[topics.'a b']",
            "duewheel.toml:1:9: topics: 'a b' is no name of a topic: must be letters, digits, '.', '_' \
            or '-', and start with a letter or digit",
        ),
        (
            "[topics.pay.wechat]\nlease='1s'",
            "duewheel.toml:1:13: topics.\"pay\".wechat: a name with dots needs quotes: \
            [topics.\"pay.wechat\"]",
        ),
        (
            "[topics.a]\nleese = '1s'",
            "duewheel.toml:2:1: topics.\"a\".leese: there is no such setting of a topic; did you \
            mean 'lease'?",
        ),
        (
            "[topics.a]\nlease = 30",
            "duewheel.toml:2:9: topics.\"a\".lease: a text in quotes is expected, not a whole number",
        ),
        ("[topics.a]\nlease = '1ms'", "duewheel.toml:2:9: topics.\"a\".lease: 1ms; must be 100ms to 12h"),
        ("[topics.a]\nrate = '1/2d'", "duewheel.toml:2:8: topics.\"a\".rate.period: 2d; must be 1ms to 1d"),
        ("[topics.a]\nschedule = ''", "duewheel.toml:2:12: topics.\"a\".schedule: must have at least one tier"),
        (
            "[topics.a]\nschedule = '1s,soon'",
            "duewheel.toml:2:12: topics.\"a\".schedule: 'soon' is not a duration; write \
            it as 250ms, 30s, 5m, 1h30m or 2d",
        ),
        ("max_delay='1s'\n[topics.a]", "duewheel.toml:2:9: topics.\"a\".schedule: 2s; at most 1s"),
        ("max_topics=1\n[topics.a]\n[topics.b]", "duewheel.toml: topics: 2 are declared; max_topics allows 1"),
    ] {
        let problems = read(text).expect_err(text);
        assert_eq!(problems, Problems(vec![want.to_owned()]), "{text}");
    }
}

#[test]
fn a_file_that_is_no_toml_is_refused_at_the_place_where_it_ends_to_be_some() {
    for (text, place) in [
        ("listen = ", "duewheel.toml:1:"),
        ("a = 1\nlisten 1", "duewheel.toml:2:"),
        ("listen = 'a'\nlisten = 'b'", "duewheel.toml:2:1: "),
        ("[topics.a]\n[topics.a]", "duewheel.toml:2:"),
    ] {
        let Problems(problems) = read(text).expect_err(text);
        assert!(problems[0].starts_with(place), "{text}: {problems:?}");
    }
    let Problems(problems) = read("lisen = 1\nmax_body = true\nmax_delay = 'x'").expect_err("three problems");
    assert_eq!(problems.len(), 3, "{problems:?}");
}

#[test]
fn a_wrong_value_names_its_flag_or_variable_also_where_it_is_overruled() {
    let args = ServeArgs { flags: vec![flag("drain_timeout", "soon")], ..ServeArgs::default() };
    let Problems(problems) = Config::read(&args, nothing).expect_err("no span");
    assert!(problems[0].starts_with("--drain-timeout: 'soon'"), "{problems:?}");
    let variable = |name: &str| (name == "DUEWHEEL_INSECURE").then(|| "perhaps".into());
    let args = ServeArgs { flags: vec![flag("insecure", "true")], ..ServeArgs::default() };
    let Problems(problems) = Config::read(&args, variable).expect_err("no boolean");
    assert_eq!(problems, ["environment DUEWHEEL_INSECURE: 'perhaps' is neither true nor false"]);
}

#[test]
fn every_value_is_written_as_it_is_read_and_fits_the_form_of_its_setting() {
    let default = Config::default();
    for setting in SETTINGS {
        let text = (setting.text)(&default);
        let mut config = Config::default();
        (setting.set)(&mut config, &text).expect(setting.key);
        assert_eq!((setting.text)(&config), text, "{}", setting.key);
        assert!((setting.set)(&mut config, "\0 no value").is_err() || setting.key == "data_dir", "{}", setting.key);
    }
}

#[test]
fn a_reload_takes_over_what_it_can_and_keeps_the_rest() {
    let mut running = Config::default();
    let new =
        read("log_level = 'debug'\nmax_body = 9\ndisk_reserve = 5\n[topics.a]\nlease = '9s'").expect("well formed");
    let keys = |differences: Vec<Difference>| -> Vec<(&str, bool)> {
        differences.iter().map(|difference| (difference.key, difference.is_reloadable)).collect()
    };
    let differences = running.differences(&new);
    assert_eq!((differences[0].old.as_str(), differences[0].new.as_str()), ("auto", "5"));
    assert_eq!(keys(differences), [("disk_reserve", true), ("max_body", false), ("log_level", true)]);
    running.reload(new.clone());
    assert_eq!(keys(running.differences(&new)), [("max_body", false)]);
    assert_eq!(running.log_level, "debug");
    assert_eq!(running.server.disk_reserve, Some(5));
    assert_eq!(running.server.topics.len(), 1);
}

#[test]
fn a_misspelt_variable_is_noticed_and_a_foreign_one_is_not() {
    let names = ["DUEWHEEL_LISEN", "DUEWHEEL_LISTEN", "DUEWHEEL_PORT", "DUEWHEEL_ENDPOINT", "LISEN", "DUEWHEEL_CONFIG"];
    let found = misspelt_variables(names.into_iter().map(str::to_owned));
    assert_eq!(found, [("DUEWHEEL_LISEN".to_owned(), "DUEWHEEL_LISTEN".to_owned())]);
}

/// A line of the example that gives a value: a comment sign with a key or a table directly behind it.
fn is_value(line: &str) -> bool {
    line.starts_with('#') && line[1..].starts_with(|c: char| c.is_ascii_lowercase() || c == '[')
}

#[test]
fn the_example_file_has_every_key_with_its_default_and_a_comment() {
    let as_it_is = read(EXAMPLE).expect("the example is well formed");
    assert!(as_it_is.differences(&Config::default()).is_empty() && as_it_is.topics.is_empty(), "it changes nothing");

    let values: Vec<&str> = EXAMPLE.lines().filter(|line| is_value(line)).map(|line| &line[1..]).collect();
    let config = read(&values.join("\n")).expect("its values are well formed");
    for (setting, source) in SETTINGS.iter().zip(&config.sources) {
        assert_ne!(*source, Source::Default, "{} is not in the example", setting.key);
    }
    assert_eq!(config.differences(&Config::default()), [], "the example shows the defaults");
    let topic = config.server.topics.first().expect("it declares a topic");
    assert_eq!(topic.name.as_str(), "pay.wechat");
    assert_eq!(topic.patch.of_present(&TopicSettings::default()), TopicSettings::default());
    let mut named = topic.patch.fields().to_vec();
    named.sort_unstable();
    assert_eq!(named, TopicField::ALL);
    assert_ne!(topic.patch, TopicPatch::default());

    let lines: Vec<&str> = EXAMPLE.lines().collect();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| is_value(line)) {
        assert!(lines[at - 1].starts_with("# "), "'{line}' has no comment");
    }
}

#[test]
fn a_topic_has_the_same_settings_in_the_file_and_in_the_api() {
    let files = prost_types::FileDescriptorSet::decode(crate::pb::DESCRIPTORS).expect("descriptors");
    let mut messages = files.file.iter().flat_map(|file| &file.message_type);
    let settings = messages.find(|message| message.name() == "TopicSettings").expect("the message of the API");
    let mut in_api: Vec<&str> = settings.field.iter().map(prost_types::FieldDescriptorProto::name).collect();
    let mut in_file: Vec<&str> = TopicField::ALL.into_iter().map(TopicField::name).collect();
    in_api.sort_unstable();
    in_file.sort_unstable();
    assert_eq!(in_file, in_api);
}
