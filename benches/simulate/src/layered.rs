//! The web server behind a layer that transforms its bytes.

use std::io::{self, Write};
use std::mem;

use evring::{Application, Config};
use evring_tls::{Layer, Transform};

/// A transform that leaves all bytes as they are, so that clients need none, and checks how much is decoded.
#[derive(Debug)]
pub(super) struct Identity {
    /// Maximum number of decoded bytes that the application has not consumed.
    max: usize,
    sealed: Vec<u8>,
}

impl Identity {
    /// Returns the layer around `inner`. `landed` is the maximum number of bytes that arrive before a pause takes
    /// effect.
    pub(super) fn around<A: Application>(inner: A, landed: usize) -> Layer<A, Self> {
        // The decoded bytes may include as many consumed ones.
        let max = 2 * 2 * (A::MAX_UNCONSUMED + landed);
        Layer::new(max, inner).expect("the transform cannot fail")
    }
}

/// Returns the maximum number of bytes that arrive before a pause takes effect, in any mechanism.
pub(super) fn landed(config: &Config) -> usize {
    2 * usize::from(config.buffers) * config.buffer_size as usize
}

impl Transform for Identity {
    type Config = usize;

    fn new(max: &usize) -> io::Result<Self> {
        Ok(Identity { max: *max, sealed: Vec::new() })
    }

    fn ready(&self) -> bool {
        true
    }

    fn open(&mut self, wire: &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
        plain.extend_from_slice(wire);
        assert!(plain.len() <= self.max, "{} decoded bytes, at most {}", plain.len(), self.max);
        Ok(false)
    }

    fn ended(&self) -> io::Result<()> {
        Ok(())
    }

    fn seal(&mut self, plain: &[u8]) -> io::Result<()> {
        self.sealed.extend_from_slice(plain);
        Ok(())
    }

    fn end(&mut self) {}

    fn wire(&mut self, to: &mut dyn Write) -> io::Result<()> {
        to.write_all(&mem::take(&mut self.sealed))
    }
}
