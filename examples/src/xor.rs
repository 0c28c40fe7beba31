//! A minimal transformation.

use std::io::{self, Write};

use evring_tls::Transform;

/// Combines each byte with a secret one by exclusive or. Demonstrates the layer without certificates.
#[derive(Debug)]
pub struct Xor {
    secret: u8,
    sealed: Vec<u8>,
}

impl Transform for Xor {
    type Config = u8;

    fn new(secret: &u8) -> io::Result<Self> {
        Ok(Xor { secret: *secret, sealed: Vec::new() })
    }

    fn ready(&self) -> bool {
        true
    }

    fn open(&mut self, wire: &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
        plain.extend(wire.iter().map(|b| b ^ self.secret));
        Ok(false)
    }

    fn ended(&self) -> io::Result<()> {
        Ok(())
    }

    fn seal(&mut self, plain: &[u8]) -> io::Result<()> {
        self.sealed.extend(plain.iter().map(|b| b ^ self.secret));
        Ok(())
    }

    fn end(&mut self) {}

    fn wire(&mut self, to: &mut dyn Write) -> io::Result<()> {
        to.write_all(&self.sealed)?;
        self.sealed.clear();
        Ok(())
    }
}
