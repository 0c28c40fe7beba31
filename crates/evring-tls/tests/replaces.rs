//! Which certificates may replace others.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::SystemTime;

use evring_tls::{CertificateError, Certificates};
use rcgen::{CertificateParams, KeyPair, SanType};
use tempfile::TempDir;

/// Files of certificates that are valid, or have expired.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Files(tempfile::tempdir().unwrap())
    }

    /// Writes a certificate and its key.
    fn write(&self, file: &str, names: &[&str], is_valid: bool) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names
            .iter()
            .map(|name| match name.parse::<Ipv4Addr>() {
                Ok(address) => SanType::IpAddress(IpAddr::V4(address)),
                Err(_) => SanType::DnsName((*name).try_into().unwrap()),
            })
            .collect();
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(if is_valid { 2400 } else { 2003 }, 1, 1);
        let pair = KeyPair::generate().unwrap();
        let paths =
            (self.0.path().join(format!("{file}.pem")), self.0.path().join(format!("{file}.key")));
        fs::write(&paths.0, params.self_signed(&pair).unwrap().pem()).unwrap();
        fs::write(&paths.1, pair.serialize_pem()).unwrap();
        paths
    }

    /// Reads certificates, each of which is a file, its names, and whether it is valid.
    fn load(&self, all: &[(&str, &[&str], bool)]) -> Certificates {
        let files = all.iter().map(|(file, names, is_valid)| self.write(file, names, *is_valid));
        Certificates::load(files.collect::<Vec<_>>()).unwrap()
    }
}

const A: &[&str] = &["a.example.org"];
const B: &[&str] = &["b.example.org"];
const WILDCARD: &[&str] = &["*.example.org"];
const ADDRESS: &[&str] = &["127.0.0.1"];

/// Returns the file of the certificate because of which `next` must not replace `before`.
fn refused(before: &[(&str, &[&str], bool)], next: &[(&str, &[&str], bool)]) -> Option<String> {
    let files = Files::new();
    let before = files.load(before);
    let next = files.load(next);
    match next.check_replaces(&before, SystemTime::now()) {
        Ok(()) => None,
        Err(CertificateError::Invalidates(warning)) => {
            Some(warning.file.file_name().unwrap().to_str().unwrap().to_owned())
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn expired_wildcard_replaced_a_valid_certificate() {
    let refused = refused(&[("a", A, true)], &[("w", WILDCARD, false)]);
    assert_eq!(refused.as_deref(), Some("w.pem"));
}

#[test]
fn expired_certificate_of_an_address_replaced_a_valid_one() {
    let refused = refused(&[("a", ADDRESS, true)], &[("b", ADDRESS, false)]);
    assert_eq!(refused.as_deref(), Some("b.pem"));
}

#[test]
fn certificate_that_is_invalid_does_not_replace_a_valid_one() {
    type Set<'a> = &'a [(&'a str, &'a [&'a str], bool)];
    let cases: &[(Set<'_>, Set<'_>, Option<&str>)] = &[
        // The same file, also if another one for the name stays valid: clients get one of them.
        (&[("a", A, true)], &[("a", A, false)], Some("a.pem")),
        (&[("a", A, true), ("b", A, true)], &[("a", A, true), ("b", A, false)], Some("b.pem")),
        // Another file for a name, which a wildcard or another certificate had.
        (&[("w", WILDCARD, true)], &[("w", WILDCARD, true), ("a", A, false)], Some("a.pem")),
        (&[("a", A, true)], &[("b", B, true), ("c", A, false)], Some("c.pem")),
        // The one for a name, and the last valid one of two.
        (&[("a", A, true), ("w", WILDCARD, false)], &[("w", WILDCARD, false)], Some("w.pem")),
        (&[("a", A, true), ("b", A, false)], &[("b", A, false)], Some("b.pem")),
        // Clients without SNI get the first.
        (&[("a", A, true)], &[("b", B, false), ("a", A, true)], Some("b.pem")),
        // Valid ones, and those for other names.
        (&[("a", A, true)], &[("w", WILDCARD, true)], None),
        (&[("a", A, true)], &[("a", A, true), ("b", B, false)], None),
        (&[("a", A, true)], &[("a", A, true), ("w", WILDCARD, false)], None),
        // Those that were invalid before.
        (&[("a", A, false)], &[("a", A, false)], None),
        (&[("a", A, false)], &[("w", WILDCARD, false)], None),
        (&[("a", A, true), ("b", A, false)], &[("a", A, true), ("b", A, false)], None),
    ];
    for (before, next, expected) in cases {
        assert_eq!(refused(before, next).as_deref(), *expected, "{before:?} {next:?}");
    }
}
