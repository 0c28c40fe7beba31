//! File operations and sending of files, on every mechanism.

use crate::support;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;

use evring::files::{
    Access, FileKind, FileOp, MAX_READ_BYTES, MAX_WRITE_BYTES, SymlinkPolicy, WriteAt,
};
use evring::{Chunk, Close, Config, Root};
use support::client::{Client, End};
use support::script::{Ended, Event, Outcome, script};
use support::{Server, config, on_each, pattern, tiny};

/// A directory with each kind of file, inside a directory with a secret.
fn tree() -> tempfile::TempDir {
    let outside = tempfile::tempdir().unwrap();
    let root = outside.path().join("root");
    fs::create_dir_all(root.join("folder")).unwrap();
    fs::write(outside.path().join("secret"), b"secret").unwrap();
    fs::write(root.join("file"), pattern(100_000)).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    fs::write(root.join("folder/inner"), b"inner").unwrap();
    symlink("folder/inner", root.join("link")).unwrap();
    symlink("../secret", root.join("escape")).unwrap();
    symlink(outside.path().join("secret"), root.join("absolute")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    let fifo = root.join("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    outside
}

fn with_root(outside: &Path) -> Config {
    config().with(|c| c.roots = vec![outside.join("root")])
}

/// A server that stats and opens the path it receives.
fn path_server(backend: &'static str, config: Config) -> (Server, support::script::Log) {
    let (make, log) = script(|turn| {
        if let Event::Received { bytes, eof: false } = &turn.event {
            let path = String::from_utf8(bytes.clone()).unwrap();
            turn.io.file_op(turn.conn(), 1, FileOp::Stat((Root(0), (&path).into())));
            turn.io.file_op(turn.conn(), 2, FileOp::Open((Root(0), (&path).into()), Access::Read));
        }
        turn.consume();
    });
    (Server::start(backend, config, make), log)
}

#[test]
fn links_may_leave_the_root_if_permitted() {
    let outside = tree();
    on_each(|backend| {
        let config = with_root(outside.path()).with(|c| c.symlinks = SymlinkPolicy::Anywhere);
        let (make, log) = script(|turn| {
            if let Event::Received { eof: false, .. } = &turn.event {
                turn.io.file_op(
                    turn.conn(),
                    1,
                    FileOp::Open((Root(0), "escape".into()), Access::Read),
                );
            }
            turn.consume();
        });
        let server = Server::start(backend, config, make);
        let mut client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        client.send(b"go");
        assert!(matches!(log.next(), Event::Received { .. }));
        assert_eq!(log.next(), Event::File(1, Ok(Outcome::Opened(6))));
        drop(client);
        server.stop();
    });
}

#[test]
fn listing_omits_links_that_leave_the_root() {
    let outside = tree();
    on_each(|backend| {
        let (make, log) = script(|turn| {
            if let Event::Received { bytes, eof: false } = &turn.event {
                let path = String::from_utf8(bytes.clone()).unwrap();
                turn.io.file_op(turn.conn(), 1, FileOp::List((Root(0), (&path).into())));
            }
            turn.consume();
        });
        let server = Server::start(backend, with_root(outside.path()), make);
        let mut client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        let mut list = |path: &str| {
            client.send(path.as_bytes());
            assert!(matches!(log.next(), Event::Received { .. }));
            match log.next() {
                Event::File(1, Ok(Outcome::Listed(names))) => Ok(names),
                Event::File(1, Err(error)) => Err(error),
                other => panic!("{other:?}"),
            }
        };
        let names = ["empty", "fifo", "file", "folder", "link"].map(Into::into);
        assert_eq!(list("."), Ok(names.to_vec()));
        assert_eq!(list("folder"), Ok(vec!["inner".into()]));
        assert_eq!(list("missing"), Err(ErrorKind::NotFound));
        assert_eq!(list("file"), Err(ErrorKind::NotADirectory));
        assert!(list("..").is_err());
        drop(client);
        server.stop();
    });
}

#[test]
fn open_and_stat_stay_beneath_their_root() {
    let outside = tree();
    on_each(|backend| {
        let (server, log) = path_server(backend, with_root(outside.path()));
        let mut client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        let mut query = |path: &str| {
            client.send(path.as_bytes());
            assert!(matches!(log.next(), Event::Received { .. }));
            let mut outcomes = (None, None);
            for _ in 0..2 {
                match log.next() {
                    Event::File(1, Ok(Outcome::Stat(meta))) => outcomes.0 = Some(Ok(meta)),
                    Event::File(1, Err(error)) => outcomes.0 = Some(Err(error)),
                    Event::File(2, Ok(Outcome::Opened(len))) => outcomes.1 = Some(Ok(len)),
                    Event::File(2, Err(error)) => outcomes.1 = Some(Err(error)),
                    other => panic!("{other:?}"),
                }
            }
            (outcomes.0.expect("stat ends once"), outcomes.1.expect("open ends once"))
        };
        for (path, len) in [("file", 100_000), ("empty", 0), ("folder/inner", 5), ("link", 5)] {
            assert_eq!(query(path), (Ok((FileKind::Regular, len)), Ok(len)), "{path}");
        }
        assert_eq!(query("folder/../empty").1, Ok(0), "dots may stay inside");
        assert!(matches!(query("folder").0, Ok((FileKind::Directory, _))));
        assert!(matches!(query(".").0, Ok((FileKind::Directory, _))));

        let missing = (Err(ErrorKind::NotFound), Err(ErrorKind::NotFound));
        for path in ["missing", "missing/file", "folder/missing"] {
            assert_eq!(query(path), missing, "{path}");
        }
        let outside =
            ["../secret", "folder/../../secret", "escape", "absolute", "/etc/passwd", ".."];
        for path in outside {
            let (stat, open) = query(path);
            assert!(stat.is_err(), "stat of {path} gave {stat:?}");
            assert!(open.is_err(), "open of {path} gave {open:?}");
        }
        for path in ["file/below", "loop"] {
            let (stat, open) = query(path);
            assert!(stat.is_err() && open.is_err(), "{path}: {stat:?} {open:?}");
        }
        let (stat, _) = query("fifo"); // opening the fifo would block
        assert!(matches!(stat, Ok((FileKind::Other, _))), "{stat:?}");
        drop(client);
        server.stop();
    });
}

#[test]
fn unknown_root_and_path_with_nul_are_errors() {
    let outside = tree();
    on_each(|backend| {
        let (make, log) = script(|turn| {
            if turn.event == Event::Accepted {
                turn.io.file_op(
                    turn.conn(),
                    1,
                    FileOp::Open((Root(9), "file".into()), Access::Read),
                );
                turn.io.file_op(
                    turn.conn(),
                    2,
                    FileOp::Open((Root(0), "fi\0le".into()), Access::Read),
                );
            }
            turn.consume();
        });
        let server = Server::start(backend, with_root(outside.path()), make);
        let client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        for tag in [1, 2] {
            let event = log.next();
            assert!(matches!(&event, Event::File(t, Err(_)) if *t == tag));
        }
        drop(client);
        server.stop();
    });
}

#[test]
fn read_returns_the_range_and_stops_at_the_end() {
    let outside = tree();
    on_each(|backend| {
        let (make, log) = script(|turn| {
            let Some(id) = turn.id else { return };
            match turn.event {
                Event::Accepted => {
                    turn.io.file_op(id, 0, FileOp::Open((Root(0), "file".into()), Access::Read))
                }
                Event::File(0, _) => {
                    let file = turn.file.take().unwrap();
                    turn.io.file_op(id, 1, FileOp::Read(file.clone(), 0..10));
                    turn.io.file_op(id, 2, FileOp::Read(file.clone(), 99_990..200_000));
                    turn.io.file_op(id, 3, FileOp::Read(file.clone(), 100_000..100_001));
                    turn.io.file_op(id, 4, FileOp::Read(file.clone(), 0..90_000));
                    turn.io.file_op(id, 5, FileOp::Read(file, 7..7));
                }
                _ => {}
            }
            turn.consume();
        });
        let server = Server::start(backend, with_root(outside.path()), make);
        let client = Client::connect(server.address);
        assert_eq!((log.next(), log.next()).1, Event::File(0, Ok(Outcome::Opened(100_000))));
        let all = pattern(100_000);
        let max = MAX_READ_BYTES as usize;
        let expected: [&[u8]; 5] = [&all[..10], &all[99_990..], &[], &all[..max], &[]];
        for _ in 0..5 {
            let Event::File(tag, Ok(Outcome::Read(bytes))) = log.next() else { panic!() };
            assert!(bytes == expected[tag as usize - 1], "read {tag}: {} bytes", bytes.len());
        }
        drop(client);
        server.stop();
    });
}

/// Sends the chunks that the test makes from the file "file", then closes.
fn sending(
    backend: &'static str,
    config: Config,
    ranges: &'static [(u64, u64)],
    close: Close,
) -> (Server, support::script::Log) {
    let (make, log) = script(move |turn| {
        let Some(id) = turn.id else { return };
        match turn.event {
            Event::Received { eof: false, .. } => {
                turn.io.file_op(id, 0, FileOp::Open((Root(0), "file".into()), Access::Read));
            }
            Event::File(0, _) => {
                let file = turn.file.take().unwrap();
                for (from, to) in ranges {
                    turn.io.send(id, Chunk::Copy(b"<"));
                    turn.io.send(id, Chunk::File(file.clone(), *from..*to));
                    turn.io.send(id, Chunk::Static(b">"));
                }
                turn.io.close(id, close);
            }
            _ => {}
        }
        turn.consume();
    });
    (Server::start(backend, config, make), log)
}

#[test]
fn slow_reader_gets_a_large_file_between_other_chunks() {
    const LEN: u64 = 5_000_000;
    let root = tempfile::tempdir().unwrap();
    let contents = pattern(LEN as usize);
    fs::write(root.path().join("file"), &contents).unwrap();
    on_each(|backend| {
        let config = tiny().with(|c| c.roots = vec![root.path().into()]);
        let ranges = &[(0, LEN), (10, 10), (LEN - 3, LEN), (0, 3)];
        let (server, log) = sending(backend, config, ranges, Close::Flush);
        let mut client = Client::narrow(server.address);
        client.send(b"go");
        client.expect(b"<");
        client.expect(&contents);
        client.expect(b"><><");
        client.expect(&contents[contents.len() - 3..]);
        client.expect(b"><");
        client.expect(&contents[..3]);
        client.expect_last(b">", End::Eof);
        while log.next() != Event::Closed(Ended::Closed) {}
        server.stop();
    });
}

#[test]
fn file_truncated_while_being_sent_ends_the_connection() {
    const LEN: u64 = 8_000_000;
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("file");
    on_each(|backend| {
        fs::write(&path, pattern(LEN as usize)).unwrap();
        let config = tiny().with(|c| c.roots = vec![root.path().into()]);
        let (server, log) = sending(backend, config, &[(0, LEN)], Close::Flush);
        let mut client = Client::narrow(server.address);
        client.send(b"go");
        client.expect(b"<"); // sending has begun, and stalls without a reader
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(LEN / 2).unwrap();
        let (got, _) = client.read_to_end();
        assert!(got.len() <= LEN as usize / 2 && got == pattern(got.len()), "{}", got.len());
        loop {
            match log.next() {
                Event::Closed(reason) => break assert_eq!(reason, Ended::Truncated),
                _ => continue,
            }
        }
        server.stop();
    });
}

#[test]
fn client_closed_while_a_file_is_sent_leaks_nothing() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), pattern(3_000_000)).unwrap();
    on_each(|backend| {
        let config = tiny().with(|c| c.roots = vec![root.path().into()]);
        let (server, log) = sending(backend, config, &[(0, 3_000_000)], Close::Half);
        let mut client = Client::narrow(server.address);
        client.send(b"go");
        client.expect(b"<");
        client.reset();
        loop {
            match log.next() {
                Event::Closed(reason) => break assert_eq!(reason, Ended::Failed),
                _ => continue,
            }
        }
        server.stop();
    });
}

#[test]
fn files_are_created_and_written_under_a_writable_root() {
    on_each(|backend| {
        let root = tempfile::tempdir().unwrap();
        let (make, log) = script(|turn| {
            let Some(id) = turn.id else { return };
            match turn.event {
                Event::Accepted => {
                    let path = (Root(0), "new".into());
                    turn.io.file_op(id, 0, FileOp::Open(path, Access::Create));
                }
                Event::File(0, Ok(_)) => {
                    let file = turn.file.take().unwrap();
                    let write = |at, bytes| FileOp::write(file.clone(), at, bytes);
                    turn.io.file_op(id, 1, write(WriteAt::Offset(10), pattern(MAX_WRITE_BYTES)));
                    turn.io.file_op(id, 2, write(WriteAt::End, vec![0; MAX_WRITE_BYTES + 1]));
                }
                Event::File(1, _) => {
                    let path = (Root(0), "new".into());
                    turn.io.file_op(id, 3, FileOp::Open(path, Access::Write));
                }
                Event::File(3, _) => {
                    let file = turn.file.take().unwrap();
                    turn.io.file_op(id, 4, FileOp::write(file, WriteAt::End, "the end"));
                }
                _ => {}
            }
            turn.consume();
        });
        let roots = vec![root.path().to_owned()];
        let config = config().with(|c| {
            c.roots = roots;
            c.writable_roots = vec![Root(0)];
        });
        let server = Server::start(backend, config, make);
        let client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        assert_eq!(log.next(), Event::File(0, Ok(Outcome::Opened(0))));
        let (mut ended, mut len) = (Vec::new(), 0);
        while ended.len() < 4 {
            match log.next() {
                Event::File(3, Ok(Outcome::Opened(n))) => len = n,
                Event::File(2, result) => assert!(result.is_err(), "too long"),
                Event::File(_, result) => assert_eq!(result, Ok(Outcome::Written)),
                other => panic!("{other:?}"),
            }
            ended.push(());
        }
        assert_eq!(len, 10 + MAX_WRITE_BYTES as u64);
        let expected = [&[0; 10][..], &pattern(MAX_WRITE_BYTES), b"the end"].concat();
        assert!(fs::read(root.path().join("new")).unwrap() == expected);
        drop(client);
        server.stop();
    });
}

#[test]
fn no_file_is_opened_for_writing_under_another_root() {
    let (outside, second) = (tree(), tempfile::tempdir().unwrap());
    on_each(|backend| {
        let (make, log) = script(|turn| {
            let Some(id) = turn.id else { return };
            match turn.event {
                Event::Accepted => {
                    for (tag, access) in
                        [Access::Write, Access::Create, Access::Replace].into_iter().enumerate()
                    {
                        let path = (Root(0), "file".into());
                        turn.io.file_op(id, tag as u32, FileOp::Open(path, access));
                    }
                    let path = (Root(0), "file".into());
                    turn.io.file_op(id, 7, FileOp::Open(path, Access::Read));
                    let path = (Root(1), "../file".into());
                    turn.io.file_op(id, 8, FileOp::Open(path, Access::Create));
                }
                Event::File(7, _) => {
                    let file = turn.file.take().unwrap();
                    turn.io.file_op(id, 9, FileOp::write(file, WriteAt::Offset(0), "x"));
                }
                _ => {}
            }
            turn.consume();
        });
        let roots = vec![outside.path().join("root"), second.path().to_owned()];
        let config = config().with(|c| {
            c.roots = roots;
            c.writable_roots = vec![Root(1)];
        });
        let server = Server::start(backend, config, make);
        let client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        for _ in 0..6 {
            match log.next() {
                Event::File(7, result) => assert_eq!(result, Ok(Outcome::Opened(100_000))),
                Event::File(0..=2, result) => {
                    assert_eq!(result, Err(ErrorKind::ReadOnlyFilesystem));
                }
                Event::File(_, result) => assert!(result.is_err()),
                other => panic!("{other:?}"),
            }
        }
        assert!(fs::read(outside.path().join("root/file")).unwrap() == pattern(100_000));
        drop(client);
        server.stop();
    });
}

#[test]
fn writes_beyond_the_total_buffer_limit_fail() {
    on_each(|backend| {
        let root = tempfile::tempdir().unwrap();
        let (make, log) = script(|turn| {
            let Some(id) = turn.id else { return };
            let open = || FileOp::Open((Root(0), "new".into()), Access::Create);
            match turn.event {
                Event::Accepted => turn.io.file_op(id, 0, open()),
                Event::File(0 | 3, _) => {
                    let file = turn.file.take().unwrap();
                    let first =
                        if turn.event == Event::File(0, Ok(Outcome::Opened(0))) { 1 } else { 4 };
                    for tag in first..=first + 1 {
                        let write =
                            FileOp::write(file.clone(), WriteAt::End, vec![1; MAX_WRITE_BYTES]);
                        turn.io.file_op(id, tag, write);
                    }
                }
                // All memory is free again.
                Event::File(1, _) => turn.io.file_op(id, 3, open()),
                _ => {}
            }
            turn.consume();
        });
        let roots = vec![root.path().to_owned()];
        let max_buffered_bytes = 2 * MAX_WRITE_BYTES - 1;
        let writable_roots = vec![Root(0)];
        let config = config().with(|c| {
            c.roots = roots;
            c.writable_roots = writable_roots;
            c.max_buffered_bytes = max_buffered_bytes;
        });
        let server = Server::start(backend, config, make);
        let client = Client::connect(server.address);
        assert_eq!(log.next(), Event::Accepted);
        let mut results = Vec::new();
        while results.len() < 6 {
            match log.next() {
                Event::File(tag, result) => results.push((tag, result)),
                other => panic!("{other:?}"),
            }
        }
        results.sort_by_key(|(tag, _)| *tag);
        let expected = [
            Ok(Outcome::Opened(0)),
            Ok(Outcome::Written),
            Err(ErrorKind::ResourceBusy),
            Ok(Outcome::Opened(MAX_WRITE_BYTES as u64)),
            Ok(Outcome::Written),
            Err(ErrorKind::ResourceBusy),
        ];
        assert!(results.into_iter().map(|(_, result)| result).eq(expected));
        drop(client);
        server.stop();
    });
}
