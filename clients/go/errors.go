package mailappliance

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Error is an answer of the appliance, or of a proxy before it, that is not a
// success. Its code can be tested by name:
//
//	errors.Is(err, mailappliance.ErrInsufficientCredits)
//
// and its fields are found with either of
//
//	var e *mailappliance.Error
//	errors.As(err, &e)
//
//	var e mailappliance.Error
//	errors.As(err, &e)
//
// It is always returned as a pointer.
type Error struct {
	Status         int           // of the HTTP answer
	Code           string        // of the interface; empty if the answer was not an error object
	Message        string        // for people
	RequestID      string        // as the appliance logs it; empty if unknown
	RetryAfter     time.Duration // as the answer asked; 0 if it did not
	IdempotencyKey string        // of the send; empty for other calls

	serverTooOld bool // the server has no such route
}

func (e Error) Error() string {
	var b strings.Builder
	b.WriteString("mailappliance: ")
	if e.Code != "" {
		fmt.Fprintf(&b, "%d %s: ", e.Status, e.Code)
	}
	b.WriteString(e.Message)
	if e.RequestID != "" {
		fmt.Fprintf(&b, " (request %s)", e.RequestID)
	}
	return b.String()
}

// Is reports whether target is the error of this code.
func (e Error) Is(target error) bool {
	if e.serverTooOld {
		return target == ErrNotSupported
	}
	code, ok := target.(codeError)
	return ok && e.Code == string(code)
}

// As lets errors.As fill a value as well as a pointer.
func (e *Error) As(target any) bool {
	value, ok := target.(*Error)
	if ok {
		*value = *e
	}
	return ok
}

func (e Error) key() string { return e.IdempotencyKey }

// supported is err, or ErrNotSupported if it is an error object with one of the
// statuses by which an older server refuses the route.
func supported(err error, route string, missing ...int) error {
	var refused *Error
	if !errors.As(err, &refused) || refused.Code == "" {
		return err
	}
	for _, status := range missing {
		if refused.Status == status {
			refused.Message = "the server does not have " + route + ": it is older than version " + batchSince + ". Upgrade the server."
			refused.serverTooOld = true
		}
	}
	return err
}

// codeError is the error of one code of the interface.
type codeError string

func (c codeError) Error() string { return "mailappliance: " + string(c) }

// The codes of the interface, for errors.Is. An *Error with an unknown code is
// none of them.
const (
	ErrInvalidRequest        codeError = "invalid_request"
	ErrUnauthorized          codeError = "unauthorized"
	ErrForbidden             codeError = "forbidden"
	ErrNotFound              codeError = "not_found"
	ErrConflict              codeError = "conflict"
	ErrInsufficientCredits   codeError = "insufficient_credits"
	ErrRateLimited           codeError = "rate_limited"
	ErrWarmupLimited         codeError = "warmup_limited"
	ErrAccountSuspended      codeError = "account_suspended"
	ErrPayloadTooLarge       codeError = "payload_too_large"
	ErrServiceUnavailable    codeError = "service_unavailable"
	ErrTemporaryFailure      codeError = "temporary_failure"
	ErrInternalError         codeError = "internal_error"
	ErrIdempotencyConflict   codeError = "idempotency_conflict"
	ErrIdempotencyInProgress codeError = "idempotency_in_progress"
)

// ErrNotSupported is wrapped by the error of a call that the server is too old
// for. Other calls still work.
var ErrNotSupported = errors.New("mailappliance: the server is older than this call")

// ErrSignatureInvalid is wrapped by every error of a webhook that must not be
// trusted.
var ErrSignatureInvalid = errors.New("mailappliance: signature invalid")

// ConfigurationError is a mistake of the caller, found before any request.
type ConfigurationError struct {
	Message        string
	Err            error  // the cause, if there is one
	IdempotencyKey string // of the send; empty outside Send
}

func (e *ConfigurationError) Error() string {
	if e.Err != nil {
		return "mailappliance: " + e.Message + ": " + e.Err.Error()
	}
	return "mailappliance: " + e.Message
}

func (e *ConfigurationError) Unwrap() error { return e.Err }

func (e *ConfigurationError) key() string { return e.IdempotencyKey }

// ConnectionError says that no whole answer came: the connection was refused,
// reset or lost, the attempt took too long, or the certificate does not
// verify. The appliance may or may not have accepted the message; to send it
// again with the same idempotency key is safe.
type ConnectionError struct {
	Err            error // of the last attempt
	IdempotencyKey string
}

func (e *ConnectionError) Error() string { return "mailappliance: no answer: " + e.Err.Error() }

func (e *ConnectionError) Unwrap() error { return e.Err }

func (e *ConnectionError) key() string { return e.IdempotencyKey }

// ContextError says that the caller's context ended first. It wraps
// context.Canceled or context.DeadlineExceeded. As after a ConnectionError,
// the appliance may or may not have accepted the message.
type ContextError struct {
	Err            error // the context's
	Last           error // of the last attempt that failed before; nil if none did
	IdempotencyKey string
}

func (e *ContextError) Error() string {
	if e.Last != nil {
		return "mailappliance: " + e.Err.Error() + " after " + strings.TrimPrefix(e.Last.Error(), "mailappliance: ")
	}
	return "mailappliance: " + e.Err.Error()
}

func (e *ContextError) Unwrap() error { return e.Err }

func (e *ContextError) key() string { return e.IdempotencyKey }

// WaitTimeoutError says that Wait ended before the message was final.
type WaitTimeoutError struct {
	Message *Message // as last seen
	After   time.Duration
}

func (e *WaitTimeoutError) Error() string {
	return fmt.Sprintf("mailappliance: message %s still %s after %v", e.Message.ID, e.Message.Status, e.After)
}

// Timeout is true, as for a net.Error.
func (e *WaitTimeoutError) Timeout() bool { return true }

// IdempotencyKey is the key of the send that err comes from, to send the same
// message again without a risk of two. It is empty if err carries no key.
func IdempotencyKey(err error) string {
	var keyed interface{ key() string }
	if errors.As(err, &keyed) {
		return keyed.key()
	}
	return ""
}
