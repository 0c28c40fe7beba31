//! The program: its signals and its descriptors.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

struct Program {
    child: Child,
    address: SocketAddr,
}

impl Program {
    fn start(command: &mut Command) -> Program {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on ").expect(&line).split(' ').next().unwrap();
        Program { child, address: address.parse().unwrap() }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A shell in which a limit of descriptors is set, for the program with these arguments.
fn limited(limit: &str, arguments: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limit}; exec \"$0\" -p 0 {arguments}")]);
    shell.arg(env!("CARGO_BIN_EXE_kv"));
    shell
}

#[test]
fn signal_ended_the_program_in_the_middle_of_a_reply() {
    const VALUE: usize = 1_000_000;
    // More than the buffers of two sockets have.
    const GETS: usize = 32;
    for threads in ["1", "2"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kv"));
        let mut program = Program::start(command.args(["-p", "0", "-t", threads]));
        let mut stream = program.connect();
        let set = [format!("set a 0 0 {VALUE}\r\n").as_bytes(), &[b'v'; VALUE], b"\r\n"].concat();
        stream.write_all(&set).unwrap();
        stream.read_exact(&mut [0; "STORED\r\n".len()]).unwrap();
        stream.write_all(&b"get a\r\n".repeat(GETS)).unwrap();
        // The replies have begun.
        stream.read_exact(&mut [0]).unwrap();
        let idle = program.connect();
        kill_process(Pid::from_child(&program.child), Signal::TERM).unwrap();
        assert_eq!({ idle }.read(&mut [0]).unwrap(), 0);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        let reply = format!("VALUE a 0 {VALUE}\r\n").len() + VALUE + "\r\nEND\r\n".len();
        assert_eq!(rest.len() + 1, GETS * reply);
        assert!(program.child.wait().unwrap().success());
    }
}

#[test]
fn soft_limit_of_descriptors_was_the_number_of_connections() {
    let program = Program::start(&mut limited("ulimit -Sn 64", "-c 200"));
    let mut clients: Vec<_> = (0..150).map(|_| program.connect()).collect();
    for client in &mut clients {
        client.write_all(b"version\r\n").unwrap();
        let mut reply = [0; 8];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"VERSION ");
    }
}

#[test]
fn connections_beyond_the_hard_limit_of_descriptors_are_refused_at_the_start() {
    let output = limited("ulimit -n 64", "-c 200").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.starts_with("kv: -c 200 needs 217 descriptors"), "{message}");
}
