//! Application-specific safe handlers (ASHs): code of an application that runs where a message arrives, in
//! a sandbox (the module `sandbox`), or in another process (`upcall`). A model ([`model`]) computes when that is the
//! fastest way to handle a message. Dynamic integrated layer processing ([`ilp`]) composes what several layers do with
//! each byte of a message (checksum it, swap its bytes, decrypt it, copy it) at run time, in one loop.
//!
//! ```
//! use ash_sandbox::ilp::{Gauge, Mode, PipeList, byte_swap, checksum};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Compose: checksum what has arrived, and turn its words from big to little endian.
//! let mut list = PipeList::new();
//! let sum = list.add(checksum::pipe())?;
//! list.add(byte_swap::pipe(Gauge::Bits32))?;
//!
//! // Compile, once.
//! let ilp = list.compile(Mode::Write)?;
//! println!("runs as {:?}", ilp.execution());
//!
//! // Apply, to each message.
//! let message = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
//! let mut destination = [0; 8];
//! let mut state = ilp.state();
//! ilp.write(&mut state, &message, &mut destination)?;
//! assert_eq!(destination, [0x03, 0xf2, 0x01, 0x00, 0xf7, 0xf6, 0xf5, 0xf4]);
//! assert_eq!(checksum::fold(state.import(sum, checksum::SUM)?), 0xddf2);
//! # Ok(())
//! # }
//! ```
//!
//! The idea and its words are those of D. Wallach, *High-Performance Application-Specific Networking*
//! (thesis, MIT, 1997), whose application-specific safe handlers (ASHs) use such loops.
//!
//! Pipes, in the module [`ilp`]:
//!
//! | concept | section | here | what differs |
//! |---|---|---|---|
//! | pipe | 3.2.2 | [`ilp::Pipe`], [`ilp::PipeBuilder`] | |
//! | pipe list | 3.2.2, figure 3-2 | [`ilp::PipeList`] | at most [`ilp::MAX_PIPES`] pipes |
//! | `compile_pl` | 3.2.2, figure 3-2 | [`ilp::PipeList::compile`] | picks a ready-made kernel, generated code, or the interpreter, and says which: [`ilp::Execution`] |
//! | gauge, input and output; conversion | 3.2.2 | [`ilp::Gauge`], [`ilp::PipeBuilder::output_gauge`] | 8 to 64 bits; words are little-endian on every machine |
//! | `P_COMMUTATIVE` | 3.2.2, figure 3-3 | [`ilp::PipeBuilder::commutative`] | says whether fragments may come in any order: [`ilp::Ilp::is_commutative`]; generated code keeps the order |
//! | `P_NO_MOD` | 3.2.2, figure 3-3 | [`ilp::PipeBuilder::no_mod`] | checked when the pipe is built |
//! | temporary and persistent registers | 3.2.2 | [`ilp::PipeBuilder::temporary`], [`ilp::PipeBuilder::persistent`] | 64 bits; a temporary one is written before it is read |
//! | `p_inputr`, `p_input32`, `p_output32` | 3.2.2, figure 3-3 | [`ilp::PipeBuilder::input`], [`ilp::PipeBuilder::output`] | each input has a register of its own |
//! | VCODE, and its extensions for networking | 3.2.2 | [`ilp::Unary`], [`ilp::Binary`], and the builder's `select`, `crc32c`, `lookup`, `keystream` | no branches, loads, stores and divisions, so nothing has to be checked at run time |
//! | export, import | 3.2.2 | [`ilp::State::export`], [`ilp::State::import`] | the registers are in a [`ilp::State`], so that threads can share a loop |
//! | messages are multiples of four bytes | figure 3-3 | [`ilp::Tail`] | any length; each pipe says what it does with the end |
//! | `ae_rapply`, `ae_wapply` | table 5-1, 5.7 | [`ilp::Ilp::read`], [`ilp::Ilp::write`], [`ilp::Ilp::write_in_place`] | the range is checked once at the entry, as in 3.3 |
//! | loops for buffers of several layouts | 5.7 | [`ilp::Ilp::read_fragments`], [`ilp::Ilp::gather`] | one loop for all; bytes that straddle fragments go through a buffer of eight bytes |
//!
//!
//! Handlers, in the module `sandbox`:
//!
//! | concept | section | here | what differs |
//! |---|---|---|---|
//! | handler | 3.2.1, 5.4 | `sandbox::Handler` | a WebAssembly module instead of MIPS code; one instance for each tenant and thread |
//! | form: check, data, commit or abort | 3.2.1, figure 3-1 | a module, which may apply a pipe list | two of the three types: static handlers, and those with dynamic ILP; none with protocol composition |
//! | protocol composition: layers with body, commit and abort | 3.2.3 | | not built: in the thesis a prototype that it does not evaluate, and the kernel has TCP and UDP here, so a handler has the message of one protocol; one that handles several layers does so in its own code |
//! | entry, and its result | 5.4.1 | `ash_handle`, `sandbox::Outcome` | the connection instead of the circuit; 2 discards the message, as figure 3-1 does |
//! | demultiplexing | 3.1 | `evring::hooks::Binding`: a connection, a listener, or a filter on the first bytes | a filter is one range of bytes; messages that it chooses were received elsewhere, and are copied once |
//! | the identifier that downloading returns | 3.1, 5.5 | `evring::hooks::Tenant`, `evring::hooks::Bindings` | names the handler when it is bound again, from any thread; another handler takes its place while the server runs |
//! | address space of the handler | 4.1.1 | `sandbox::HandlerMemory` | a memory of its own, which the host maps a second time; messages are read-only |
//! | messages land in memory of the handler | 5.4, 5.4.1 | `sandbox::Handler::take_areas`, `evring::hooks::Landing` | a ring of provided buffers over the message area; other mechanisms read(2) into it; a tenant is a listener or a connection, as the buffer is chosen before a byte is read |
//! | sends from memory of the handler | table 5-1 | the call `reply`, `sandbox::Policy::reply_slots` | an addition: a slot is the handler's until it is sent, and again when the reply has left; the rest of its memory is copied |
//! | data of handler and application; a handler aborts instead of waiting | 5.4.1 | `sandbox::SharedTable` | the application writes it, handlers can only read it; marks in it take the place of locks |
//! | data that both change, by locks that are the programmer's duty | 5.4.1 | `sandbox::SharedTable::with_sections` | the host has the locks, and writes what a handler stores when it has handled the message: an abort after taking a lock changes nothing and releases it |
//! | notification ring, virtualised | figure 5-2 | `evring::owner::OwnerThread`, `evring::owner::NotificationRing` | a bounded queue in the process; while it is full, its connections are not received from |
//! | scheduling of the process | 6.3.3, figure 6-2 | `evring::owner::Scheduling` | of the thread that owns the ring: inherited, normal, a short slice, real-time; a policy that is not permitted is an error |
//! | datagrams | 5.4, table 6-1 | `evring::datagrams::DatagramThread`, `evring::datagrams::DatagramRing` | UDP: a number for the source takes the place of the circuit, replies are bounded as sources can be forged, and a full ring loses datagrams; one handler for a socket, as long as its thread lives: no filters, no other handler in its place, no native hook and no upcalls |
//! | upcall in process | 5.6 | `evring::hooks::ReceiveHook` | native code, run for each message instead of a batch |
//! | upcall across a protection boundary | 5.6 | `upcall::Channel`, `upcall::Peer`, `evring::hooks::Upcalls` | another process with a shared ring; messages are copied to it once; while it runs, the server handles other connections |
//! | upcalls are batched | 5.6.1, 5.6.2 | `upcall::Peer::serve` | the process takes all messages that arrived until it runs; a wake-up only if it sleeps |
//! | an upcall ends after two clock ticks | 5.6.2 | `upcall::Policy::timeout` | the message goes to the application; the process is not ended, and a few time-outs disable it |
//! | ASHs are tested first | 5.6.2 | the hook `(evring::hooks::Landing, evring::hooks::Upcalls)` | |
//! | handler of a web server | 6.4.3 | `evring_httpd::handlers::SandboxedHandler` | in `httpd`, a handler is called when the request has been parsed, routed to its host and admitted by password, with its head: a copy, or in place for a handler of an address (`SandboxedHandler::listener`); HEAD and requests with a body never reach one; what it sends is copied; `post`, `upcall` and `count` have no effect there, and `keep` returns an error; it has no governor |
//! | unsafe ASH | 6.2, 6.3 | `sandbox::Sandboxer::trust` | native code with the dispatch and memory of a handler; it is charged for its host calls only |
//! | calls | table 5-1 | `sandbox` lists them | bounded and charged; `key`, `post`, `upcall`, `count`, `reply`, `keep`, `table`, `lock`, `store`, `memory.copy` and `memory.fill` are additions |
//! | the call that gives receive buffers back | table 5-1 | the calls `keep` and `give_back`, `sandbox::MAX_KEPT` | a buffer goes back by itself when its message is consumed and its last reply has left; a handler gives back those that it keeps beyond that |
//! | a handler starts an upcall | 2.1 | the call `upcall`, `evring::hooks::Landing::starting_upcalls` | the upcall gets the message, which the handler passes on |
//! | sandboxer, downloading | 5.5 | `sandbox::Sandboxer`, `sandbox::Ash` | checks and rewrites the module; wasmtime compiles it |
//! | `aborts` | 5.5 | the call `abort` | ends the handler from any depth; no list of functions is needed |
//! | `supports` | 5.5 | | not needed: indirect calls stay in the module's table |
//! | bounded execution by timer ticks | 4.1.2 | `sandbox::Bound`, `sandbox::Loops` | no check at all without loops, else fuel, or epochs as the thesis' two ticks, which count while the thread of the handler runs |
//! | voluntary and involuntary abort | 3.3 | `sandbox::Pass`, `sandbox::Abort` | counted; a few involuntary ones disable the handler |
//! | sandboxing of floating point | 4.1 | `sandbox::Policy::allows_floats` | off by default |
//! | receive livelock | 2.4 | `sandbox::Policy::operations_per_second` | a budget for each tenant and second, which its handlers on all threads share |
//! | handlers are off when the load is high | 2.4 | `evring::Commands::is_overloaded` | `evring::hooks::Landing`, `evring::hooks::Upcalls` and `httpd` then pass all messages to the application; the load is that of new connections, as admission control measures it: messages that are late on connections that last do not count, and `tokio` measures none; UDP measures each datagram |
//! | data after an abort | 5.4.1 | | the memory is as the handler left it; mutable globals, such as the pointer to the stack, are as before the message |
//! | turning handlers off and on | 6.4.2 | `evring::hooks::Tenant::set_on`, `evring_httpd::handlers::HandlerSwitch` | one store, from any thread; both also enable a handler that aborts have disabled; a `Tenant` also says whether it is disabled, which strategy its governor prefers, and what was counted |
//!
//! The model, in the module [`model`]:
//!
//! | concept | section | here | what differs |
//! |---|---|---|---|
//! | ASH, upcall, interrupt, poll | 7.2 | [`model::Strategy`] | |
//! | process state | table 7-1 | [`model::ProcessState`] | |
//! | parameters of machine and system | tables 7-2, 7-5 | [`model::Machine`] | `cargo lab run ash-model` in the repository measures those of a machine; `t_i,i` and `t_p,i` contain the way of the application's reply to the thread of the ring, as `t_u,s` has that of an upcall's: in the thesis a process sends by a system call; nine are measured, `t_a,s` and `t_u,c` are parts of the set-up, and `t_u,a` is `t_u,s` |
//! | parameters of application and workload | table 7-3 | [`model::Workload`] | |
//! | outputs | table 7-4, equations 7.1 to 7.14 | [`model::Machine::time_us`] | `None` for the three that are not meaningful |
//! | the best strategy | 7.5 | [`model::Machine::recommend`] | `cargo lab recommend` in the repository measures a handler, too |
//! | | | [`model::Governor`] | an addition: measures the abort probability, and applies the model at run time; with `evring::hooks::Landing`, messages move to the application, or to upcalls behind it |
//!
//! This crate receives no messages: `evring::hooks::Landing`, `evring::datagrams::DatagramThread` and
//! `evring::hooks::Upcalls` do. It authenticates nothing: [`ilp::chacha20`] is the cipher alone.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod ilp;
pub mod model;
#[cfg(feature = "sandbox")]
pub mod sandbox;
#[cfg(feature = "sandbox")]
pub mod upcall;

/// Tests the examples of the README.
#[cfg(all(doctest, feature = "sandbox"))]
#[doc = include_str!("../README.md")]
struct Readme;
