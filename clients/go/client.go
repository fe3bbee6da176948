// Package mailappliance sends email through a mail appliance and reads its
// delivery status.
//
// A send is safe to repeat: it carries an idempotency key, made once and the
// same in every retry, so that a message whose answer was lost is not sent
// twice. Every error of a send carries that key (see [IdempotencyKey]).
package mailappliance

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"time"
)

// Version is the version of this library.
const Version = "1.2.0"

// batchSince is the version of the server that added batches, cancel and
// reschedule.
const batchSince = "0.7"

const (
	defaultWaitTimeout = 60 * time.Second
	maxAnswer          = 16 << 20 // bytes
)

var userAgent = "mail-appliance-go/" + Version + " go/" +
	strings.TrimPrefix(strings.Fields(runtime.Version())[0], "go")

// Mailer is what a [Client] does. Code that takes a Mailer can be tested with
// the recorder of package mailappliancetest.
type Mailer interface {
	Send(ctx context.Context, email Email, opts ...SendOption) (*Sent, error)
	SendBatch(ctx context.Context, batch Batch, opts ...SendOption) (*SentBatch, error)
	Cancel(ctx context.Context, id string) (*Message, error)
	Reschedule(ctx context.Context, id string, at time.Time) (*Message, error)
	Get(ctx context.Context, id string) (*Message, error)
	Wait(ctx context.Context, id string, opts ...WaitOption) (*Message, error)
}

var _ Mailer = (*Client)(nil)

// Client sends email and reads its status. It keeps connections open, and
// goroutines can share it.
type Client struct {
	endpoint      string // of POST
	authorization string
	retries       int
	timeout       time.Duration
	transport     http.RoundTripper

	pause  func(context.Context, time.Duration) error
	random func() float64
}

// SendOption is a setting of one [Client.Send].
type SendOption func(*sending)

type sending struct{ key string }

// WithIdempotencyKey sets the idempotency key: 1 to 255 printable ASCII
// characters without a space at either end. A key that stands for the event
// behind the message, such as "order-1234-paid", also protects against sending
// twice from two processes.
func WithIdempotencyKey(key string) SendOption {
	return func(s *sending) { s.key = key }
}

// Send asks the appliance to deliver an email. It returns when the appliance
// has accepted it; [Client.Wait] tells whether it was delivered.
//
// The error is an [*Error], a [*ConnectionError], a [*ContextError] or a
// [*ConfigurationError], and carries the idempotency key.
func (c *Client) Send(ctx context.Context, email Email, opts ...SendOption) (*Sent, error) {
	sent := &Sent{}
	var err error
	sent.IdempotencyKey, sent.Replayed, err = c.post(ctx, c.endpoint, email.loaded, opts, sent)
	if err != nil {
		return nil, err
	}
	return sent, nil
}

// SendBatch sends the messages of a batch in one request, with one key. By
// default one message that cannot be sent refuses the batch, and the error
// names it, as in "emails[3].to: …". The errors are those of [Client.Send], and
// one that is [ErrNotSupported] from a server older than 0.7.
func (c *Client) SendBatch(ctx context.Context, batch Batch, opts ...SendOption) (*SentBatch, error) {
	sent := &SentBatch{}
	var err error
	sent.IdempotencyKey, sent.Replayed, err = c.post(ctx, c.endpoint+"/batch", batch.loaded, opts, sent)
	if err != nil {
		return nil, supported(err, "POST /emails/batch", http.StatusNotFound, http.StatusMethodNotAllowed)
	}
	return sent, nil
}

// post sends content with a key, and tells the key and whether it was replayed.
func (c *Client) post(ctx context.Context, url string, load func() (any, *ConfigurationError), opts []SendOption, result any) (string, bool, error) {
	s := sending{key: newKey()}
	for _, option := range opts {
		option(&s)
	}
	if !validKey(s.key) {
		return s.key, false, &ConfigurationError{
			Message:        "the idempotency key must be 1 to 255 printable ASCII characters without a space at either end",
			IdempotencyKey: s.key,
		}
	}
	var body []byte
	content, err := load()
	if err == nil {
		body, err = encode(content)
	}
	if err != nil {
		err.IdempotencyKey = s.key
		return s.key, false, err
	}
	header, failed := c.call(ctx, http.MethodPost, url, s.key, body, result)
	return s.key, strings.EqualFold(header.Get("Idempotent-Replayed"), "true"), failed
}

// Get reads a message and the status of each recipient.
//
// The error is an [*Error], a [*ConnectionError], a [*ContextError] or a
// [*ConfigurationError].
func (c *Client) Get(ctx context.Context, id string) (*Message, error) {
	return c.message(ctx, http.MethodGet, id, "", nil)
}

// Cancel cancels what is still queued or scheduled of a message. If nothing is,
// the error is [ErrConflict]; if the answer to a first attempt was lost, that
// can mean that this attempt succeeded, and Get shows it. A server older than
// 0.7 makes it [ErrNotSupported].
func (c *Client) Cancel(ctx context.Context, id string) (*Message, error) {
	message, err := c.message(ctx, http.MethodPost, id, "/cancel", nil)
	if !errors.Is(err, ErrNotFound) {
		return message, err
	}
	// An older server and an unknown id both are 404. A GET tells them apart:
	// 405 only where the path has a route.
	_, route := c.message(ctx, http.MethodGet, id, "/cancel", nil)
	var refused *Error
	if errors.As(route, &refused) && refused.Status == http.StatusMethodNotAllowed {
		return nil, err
	}
	return nil, supported(route, "POST /emails/"+id+"/cancel", http.StatusNotFound)
}

// Reschedule moves a scheduled message to another time. Once it is due, the
// error is [ErrConflict]. A server older than 0.7 makes it [ErrNotSupported].
func (c *Client) Reschedule(ctx context.Context, id string, at time.Time) (*Message, error) {
	body, err := encode(map[string]time.Time{"scheduled_at": at})
	if err != nil {
		return nil, err
	}
	message, failed := c.message(ctx, http.MethodPatch, id, "", body)
	return message, supported(failed, "PATCH /emails/"+id, http.StatusMethodNotAllowed)
}

// message is the answer of a request for one message; action is what follows
// the id in the path.
func (c *Client) message(ctx context.Context, method, id, action string, body []byte) (*Message, error) {
	if id == "" {
		return nil, &ConfigurationError{Message: "the message id is empty"}
	}
	message := &Message{}
	if _, err := c.call(ctx, method, c.endpoint+"/"+escape(id)+action, "", body, message); err != nil {
		return nil, err
	}
	return message, nil
}

// WaitOption is a setting of one [Client.Wait].
type WaitOption func(*waiting)

// WithWaitTimeout sets how long to wait; 60 seconds by default.
func WithWaitTimeout(d time.Duration) WaitOption {
	return func(w *waiting) { w.timeout = d }
}

// Wait reads a message again and again, with growing pauses, until it is final
// (see [Message.Final]). When the time is over first, the error is a
// [*WaitTimeoutError] with the message as last seen; when the context ends
// first, a [*ContextError]. Other errors are those of [Client.Get]. The time-out
// limits the pauses; only the context also ends a read that takes long.
func (c *Client) Wait(ctx context.Context, id string, opts ...WaitOption) (*Message, error) {
	w := waiting{timeout: defaultWaitTimeout}
	for _, option := range opts {
		option(&w)
	}
	start := time.Now()
	for {
		message, err := c.Get(ctx, id)
		if err != nil || message.Final() {
			return message, err
		}
		pause, more := w.next(time.Since(start))
		if !more {
			return nil, &WaitTimeoutError{Message: message, After: w.timeout}
		}
		if err := c.pause(ctx, pause); err != nil {
			return nil, &ContextError{Err: err}
		}
	}
}

// CloseIdleConnections closes the connections that are kept open and not in
// use.
func (c *Client) CloseIdleConnections() {
	if t, ok := c.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// call makes attempts until the plan ends, each with the same bytes, and fills
// result from the answer. It returns the answer's header.
func (c *Client) call(ctx context.Context, method, url, key string, body []byte, result any) (http.Header, error) {
	request, err := http.NewRequest(method, url, nil)
	if err != nil {
		return nil, &ConfigurationError{Message: "the URL cannot be used", Err: err, IdempotencyKey: key}
	}
	request.Header.Set("Authorization", c.authorization)
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", userAgent)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	_, isBatch := result.(*SentBatch)
	p := plan{key: key, isBatch: isBatch, retries: c.retries}
	var last error
	for {
		answer, err := c.attempt(ctx, request, body)
		if err != nil && ctx.Err() != nil {
			return nil, &ContextError{Err: ctx.Err(), Last: last, IdempotencyKey: key}
		}
		next := p.next(attempt{
			answer: answer, err: err, permanent: untrusted(err), now: time.Now(), random: c.random(),
		})
		switch {
		case next.retry:
			last = next.err
		case next.err != nil:
			return nil, next.err
		default:
			return answer.header, answer.decode(result, key)
		}
		if err := c.pause(ctx, next.pause); err != nil {
			return nil, &ContextError{Err: err, Last: last, IdempotencyKey: key}
		}
	}
}

// attempt makes the request once and reads the whole answer, in the time for
// one attempt.
//
// net/http silently repeats requests on a kept connection that was lost, if
// they have no body, or a body that it can read again and an Idempotency-Key.
// Those repetitions would be outside the plan, so every request has a body
// that can be read once, if only an empty one; it is not on the wire of a GET.
func (c *Client) attempt(ctx context.Context, template *http.Request, body []byte) (*answer, error) {
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	request := template.Clone(limited)
	request.Body = io.NopCloser(bytes.NewReader(body))
	request.ContentLength = int64(len(body))
	// The transport is used without an http.Client, which would follow
	// redirects or fail to read where they lead.
	response, err := c.transport.RoundTrip(request)
	if err != nil {
		return nil, c.explain(limited, err)
	}
	defer response.Body.Close()
	read, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, c.explain(limited, err)
	}
	return &answer{status: response.StatusCode, header: response.Header, body: read}, nil
}

// explain tells the time-out of an attempt from the end of the caller's
// context, which looks the same in err.
func (c *Client) explain(limited context.Context, err error) error {
	if limited.Err() == context.DeadlineExceeded {
		return fmt.Errorf("not answered within %v: %w", c.timeout, os.ErrDeadlineExceeded)
	}
	return err
}

// untrusted reports whether err says that the certificate does not verify.
func untrusted(err error) bool {
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		roots     x509.SystemRootsError
		critical  x509.UnhandledCriticalExtension
	)
	return errors.As(err, &authority) || errors.As(err, &hostname) || errors.As(err, &invalid) ||
		errors.As(err, &roots) || errors.As(err, &critical)
}

// pause waits, or ends early with the error of the context.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// newKey is "auto_" and a UUIDv4 (RFC 4122, 4.4).
func newKey() string {
	var b [16]byte
	fillRandom(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("auto_%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// random is uniform in [0, 1). Before Go 1.20, math/rand gives every process
// the same numbers, and clients cut off together would return together.
func random() float64 {
	var b [8]byte
	fillRandom(b[:])
	return float64(binary.BigEndian.Uint64(b[:])>>11) / (1 << 53)
}

func fillRandom(b []byte) {
	if _, err := rand.Read(b); err != nil {
		panic("mailappliance: the system has no random numbers: " + err.Error())
	}
}

func validKey(key string) bool {
	return key != "" && len(key) <= 255 && printable(key) && strings.TrimSpace(key) == key
}

// printable reports whether s is printable ASCII, space included.
func printable(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// escape percent-encodes all that is not unreserved (RFC 3986, 2.3).
func escape(segment string) string {
	return strings.ReplaceAll(url.QueryEscape(segment), "+", "%20")
}
