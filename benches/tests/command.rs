//! The lab as its users see it.

use std::process::{Command, Output};

use serde_json::Value;

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).args(arguments).output().expect("the lab runs")
}

#[test]
fn the_list_is_json_with_id_title_and_source() {
    let output = lab(&["list", "--json"]);
    assert!(output.status.success());
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let floors = list.as_array().unwrap().iter().find(|e| e["id"] == "floors").unwrap();
    assert!(floors["title"].is_string() && floors["source"].is_string());
}

#[test]
fn the_list_for_people_names_every_experiment() {
    let text = String::from_utf8(lab(&["list"]).stdout).unwrap();
    assert!(text.contains("floors"), "{text}");
}

#[test]
fn an_unknown_experiment_is_a_sentence_and_exit_code_2() {
    let output = lab(&["run", "no-such-thing"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("lab: there is no experiment `no-such-thing`"), "{text}");
    assert!(text.contains("floors"), "{text}");
}

#[test]
fn helpers_of_a_measurement_are_not_shown() {
    let text = String::from_utf8(lab(&["--help"]).stdout).unwrap();
    assert!(!text.contains("serve") && !text.contains("client"), "{text}");
}
