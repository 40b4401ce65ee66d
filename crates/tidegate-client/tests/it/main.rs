//! The client as its users have it: many processes, real servers, and a real Redis.

mod processes;
