package tidegate

import (
	"fmt"
	"time"
)

// Unavailable means that no decision came in time. The failure policy applies.
type Unavailable struct {
	// Reason is "unreachable", "timeout", "tls", "protocol" or "server".
	Reason  string
	message string
	cause   error
}

func (e *Unavailable) Error() string { return e.message }

// Unwrap gives the error of the network, if it was one.
func (e *Unavailable) Unwrap() error { return e.cause }

// Unauthorized means that the server refuses the token, or wants one. The failure policy applies.
type Unauthorized struct{ Status int }

func (e *Unauthorized) Error() string {
	return fmt.Sprintf("the server refuses the token (%d): set Token to one of access.tokens", e.Status)
}

// InvalidRequest means that the server cannot read the request, or has no such domain. The failure policy never hides it.
type InvalidRequest struct {
	Status              int
	Detail, Field, Hint string
}

func (e *InvalidRequest) Error() string {
	if e.Hint == "" {
		return e.Detail
	}
	return e.Detail + "; " + e.Hint
}

// LeaseEnded means that a lease is over: released, or older than its time to live.
type LeaseEnded struct{ Detail string }

func (e *LeaseEnded) Error() string { return e.Detail }

// RateLimited is returned by WithLease and Acquire where a limit refuses.
type RateLimited struct{ Decision Decision }

func (e *RateLimited) Error() string {
	by := e.Decision.Rule
	if by == "" {
		by = e.Decision.Source
	}
	if e.Decision.RetryAfter < 0 {
		return "refused by " + by
	}
	return fmt.Sprintf("refused by %s, try again in %s", by, e.Decision.RetryAfter.Round(time.Millisecond))
}
