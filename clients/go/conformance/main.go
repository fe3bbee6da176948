// Command conformance is the driver of this library for the scenarios in
// clients/conformance: commands come as JSON objects on standard input, one
// answer to each goes to standard output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	mailappliance "github.com/mail-appliance/mail-appliance-go"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	commands, answers := json.NewDecoder(in), json.NewEncoder(out)
	d := &driver{}
	for {
		var c command
		if err := commands.Decode(&c); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		answer, err := d.do(context.Background(), c)
		if err != nil {
			return err
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
}

type object = map[string]any

// command has the fields of all commands; a nil pointer is an absent one.
type command struct {
	Command        string     `json:"command"`
	URL            string     `json:"url"`
	Token          string     `json:"token"`
	Username       string     `json:"username"`
	Password       string     `json:"password"`
	Retries        *int       `json:"retries"`
	ConnectTimeout *float64   `json:"connect_timeout"`
	Timeout        *float64   `json:"timeout"`
	Message        message    `json:"message"`
	Messages       []message  `json:"messages"`
	OnError        string     `json:"on_error"`
	ScheduledAt    *time.Time `json:"scheduled_at"`
	ScheduledUnix  int64      `json:"scheduled_unix"`
	IdempotencyKey *string    `json:"idempotency_key"`
	ID             string     `json:"id"`
	Count          int        `json:"count"`
	Body           []byte     `json:"body_base64"`
	Header         string     `json:"header"`
	Secrets        []string   `json:"secrets"`
	Tolerance      *float64   `json:"tolerance"`
	Now            float64    `json:"now"`
}

type driver struct{ client *mailappliance.Client }

// do answers a command; the error is one of the driver, not of the library.
func (d *driver) do(ctx context.Context, c command) (object, error) {
	switch c.Command {
	case "client":
		client, err := mailappliance.New(c.URL, c.options()...)
		d.client = client
		if err != nil {
			return failure(err), nil
		}
		return object{"ok": true}, nil
	case "send":
		return d.send(ctx, c)
	case "send_batch":
		return d.sendBatch(ctx, c)
	case "cancel":
		return read(d.client.Cancel(ctx, c.ID)), nil
	case "reschedule":
		return read(d.client.Reschedule(ctx, c.ID, *scheduled(c.ScheduledAt, c.ScheduledUnix))), nil
	case "get":
		return read(d.client.Get(ctx, c.ID)), nil
	case "wait":
		var opts []mailappliance.WaitOption
		if c.Timeout != nil {
			opts = append(opts, mailappliance.WithWaitTimeout(seconds(*c.Timeout)))
		}
		return read(d.client.Wait(ctx, c.ID, opts...)), nil
	case "parallel":
		return d.parallel(ctx, c)
	case "verify":
		return verify(c), nil
	}
	return nil, fmt.Errorf("unknown command %q", c.Command)
}

func (c command) options() []mailappliance.Option {
	var opts []mailappliance.Option
	if c.Username != "" || c.Password != "" {
		opts = append(opts, mailappliance.Basic(c.Username, c.Password))
	}
	if c.Token != "" {
		opts = append(opts, mailappliance.Token(c.Token))
	}
	if c.Retries != nil {
		opts = append(opts, mailappliance.WithRetries(*c.Retries))
	}
	if c.ConnectTimeout != nil {
		opts = append(opts, mailappliance.WithConnectTimeout(seconds(*c.ConnectTimeout)))
	}
	if c.Timeout != nil {
		opts = append(opts, mailappliance.WithTimeout(seconds(*c.Timeout)))
	}
	return opts
}

func (d *driver) send(ctx context.Context, c command) (object, error) {
	email, closeFiles, err := c.Message.email()
	defer closeFiles()
	if err != nil {
		return nil, err
	}
	sent, err := d.client.Send(ctx, email, c.sendOptions()...)
	if err != nil {
		return failure(err), nil
	}
	return object{"result": sentResult(sent)}, nil
}

func (c command) sendOptions() []mailappliance.SendOption {
	if c.IdempotencyKey == nil {
		return nil
	}
	return []mailappliance.SendOption{mailappliance.WithIdempotencyKey(*c.IdempotencyKey)}
}

func (d *driver) sendBatch(ctx context.Context, c command) (object, error) {
	batch := mailappliance.Batch{OnError: c.OnError}
	for _, m := range c.Messages {
		email, closeFiles, err := m.email()
		defer closeFiles()
		if err != nil {
			return nil, err
		}
		batch.Emails = append(batch.Emails, email)
	}
	sent, err := d.client.SendBatch(ctx, batch, c.sendOptions()...)
	if err != nil {
		return failure(err), nil
	}
	results := []object{}
	for _, item := range sent.Results {
		results = append(results, object{
			"index": item.Index, "id": text(item.ID), "status": text(item.Status), "recipient_count": item.RecipientCount,
			"credits_reserved": item.CreditsReserved, "error": text(item.Error), "code": text(item.Code),
		})
	}
	return object{"result": object{
		"results": results, "accepted": sent.Accepted, "refused": sent.Refused, "request_id": text(sent.RequestID),
		"idempotency_key": sent.IdempotencyKey, "replayed": sent.Replayed,
	}}, nil
}

// scheduled is a time that was written as text or as seconds.
func scheduled(at *time.Time, unix int64) *time.Time {
	if unix != 0 {
		t := time.Unix(unix, 0).UTC()
		return &t
	}
	return at
}

func (d *driver) parallel(ctx context.Context, c command) (object, error) {
	results := make([]any, c.Count)
	failures := make([]error, c.Count)
	var group sync.WaitGroup
	for i := range results {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			answer, err := d.send(ctx, c)
			failures[i] = err
			if results[i] = answer["result"]; results[i] == nil {
				results[i] = answer
			}
		}(i)
	}
	group.Wait()
	for _, err := range failures {
		if err != nil {
			return nil, err
		}
	}
	return object{"results": results}, nil
}

func verify(c command) object {
	tolerance := mailappliance.DefaultTolerance
	if c.Tolerance != nil {
		tolerance = seconds(*c.Tolerance)
	}
	now := time.Unix(0, 0).Add(seconds(c.Now))
	event, err := mailappliance.VerifyAt(now, tolerance, c.Body, c.Header, c.Secrets...)
	if err != nil {
		return failure(err)
	}
	return object{"result": object{
		"id": event.ID, "type": event.Type, "created_at": timestamp(event.CreatedAt), "data": event.Data,
		"received": event.Received,
	}}
}

// message is an email as a scenario writes it.
type message struct {
	mailappliance.Email
	To          list         `json:"to"`
	Cc          list         `json:"cc"`
	Bcc         list         `json:"bcc"`
	Tags        list         `json:"tags"`
	Attachments []attachment `json:"attachments"`
	Unix        int64        `json:"scheduled_unix"`
}

type attachment struct {
	Filename    string  `json:"filename"`
	ContentType string  `json:"content_type"`
	ContentID   string  `json:"content_id"`
	Bytes       *[]byte `json:"bytes_base64"`
	Path        string  `json:"path"`
	StreamPath  string  `json:"stream_path"`
}

// list is a string or a list of strings.
type list []string

func (l *list) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*l = list{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(l))
}

// email is the message for the library, and what closes its streams.
func (m message) email() (mailappliance.Email, func(), error) {
	var files []io.Closer
	closeFiles := func() {
		for _, file := range files {
			file.Close()
		}
	}
	email := m.Email
	email.To, email.Cc, email.Bcc, email.Tags = m.To, m.Cc, m.Bcc, m.Tags
	email.ScheduledAt = scheduled(email.ScheduledAt, m.Unix)
	for _, a := range m.Attachments {
		given := mailappliance.Attachment{
			Filename: a.Filename, ContentType: a.ContentType, ContentID: a.ContentID, Path: a.Path,
		}
		if a.Bytes != nil {
			given.Content = *a.Bytes
		}
		if a.StreamPath != "" {
			file, err := os.Open(a.StreamPath)
			if err != nil {
				return email, closeFiles, err
			}
			files = append(files, file)
			given.Reader = file
		}
		email.Attachments = append(email.Attachments, given)
	}
	return email, closeFiles, nil
}

func sentResult(s *mailappliance.Sent) object {
	attachments := []object{}
	for _, a := range s.Attachments {
		attachments = append(attachments, object{
			"filename": text(a.Filename), "content_type": text(a.ContentType), "size": a.Size,
			"content_id": text(a.ContentID),
		})
	}
	return object{
		"id": s.ID, "status": text(s.Status), "source": text(s.Source), "request_id": text(s.RequestID),
		"from": text(s.From), "to": s.To, "cc": s.Cc, "bcc": s.Bcc, "subject": text(s.Subject),
		"billing_status": text(s.BillingStatus), "recipient_count": s.RecipientCount,
		"credits_reserved": s.CreditsReserved, "tags": s.Tags, "attachments": attachments, "scheduled_at": timestamp(s.ScheduledAt),
		"idempotency_key": s.IdempotencyKey, "replayed": s.Replayed,
	}
}

func read(m *mailappliance.Message, err error) object {
	if err != nil {
		return failure(err)
	}
	recipients := []object{}
	for _, r := range m.Recipients {
		recipients = append(recipients, object{
			"id": text(r.ID), "email": text(r.Email), "status": text(r.Status),
			"billing_status": text(r.BillingStatus), "attempt_count": r.AttemptCount,
			"last_smtp_code": number(r.LastSMTPCode), "last_smtp_response": text(r.LastSMTPResponse),
			"delivered_at": timestamp(r.DeliveredAt), "bounced_at": timestamp(r.BouncedAt),
		})
	}
	return object{"result": object{
		"id": m.ID, "status": text(m.Status), "source": text(m.Source), "from": text(m.From),
		"subject": text(m.Subject), "billing_status": text(m.BillingStatus), "recipient_count": m.RecipientCount,
		"credits_reserved": m.CreditsReserved, "created_at": timestamp(m.CreatedAt),
		"request_id": text(m.RequestID), "recipients": recipients, "scheduled_at": timestamp(m.ScheduledAt),
		"metadata": m.Metadata,
	}}
}

// codes are the classes of the errors with a code.
var codes = map[string]error{
	"InvalidRequest":        mailappliance.ErrInvalidRequest,
	"Unauthorized":          mailappliance.ErrUnauthorized,
	"Forbidden":             mailappliance.ErrForbidden,
	"NotFound":              mailappliance.ErrNotFound,
	"Conflict":              mailappliance.ErrConflict,
	"InsufficientCredits":   mailappliance.ErrInsufficientCredits,
	"RateLimited":           mailappliance.ErrRateLimited,
	"WarmupLimited":         mailappliance.ErrWarmupLimited,
	"AccountSuspended":      mailappliance.ErrAccountSuspended,
	"PayloadTooLarge":       mailappliance.ErrPayloadTooLarge,
	"ServiceUnavailable":    mailappliance.ErrServiceUnavailable,
	"TemporaryFailure":      mailappliance.ErrTemporaryFailure,
	"InternalError":         mailappliance.ErrInternalError,
	"IdempotencyConflict":   mailappliance.ErrIdempotencyConflict,
	"IdempotencyInProgress": mailappliance.ErrIdempotencyInProgress,
}

func failure(err error) object {
	e := object{
		"class": class(err), "status": nil, "code": nil, "message": err.Error(), "request_id": nil,
		"retry_after": nil, "idempotency_key": text(mailappliance.IdempotencyKey(err)),
	}
	var api *mailappliance.Error
	if errors.As(err, &api) {
		e["status"], e["code"], e["message"] = api.Status, text(api.Code), api.Message
		e["request_id"] = text(api.RequestID)
		if api.RetryAfter != 0 {
			e["retry_after"] = api.RetryAfter.Seconds()
		}
	}
	return object{"error": e}
}

func class(err error) string {
	for name, code := range codes {
		if errors.Is(err, code) {
			return name
		}
	}
	var (
		api           *mailappliance.Error
		connection    *mailappliance.ConnectionError
		configuration *mailappliance.ConfigurationError
		timeout       *mailappliance.WaitTimeoutError
	)
	switch {
	case errors.Is(err, mailappliance.ErrNotSupported):
		return "NotSupported"
	case errors.As(err, &api):
		return "ApiError"
	case errors.As(err, &connection):
		return "ConnectionFailed"
	case errors.As(err, &configuration):
		return "ConfigurationError"
	case errors.As(err, &timeout):
		return "WaitTimeout"
	case errors.Is(err, mailappliance.ErrSignatureInvalid):
		return "SignatureInvalid"
	}
	return fmt.Sprintf("%T", err)
}

// The zero values of the library are null in an answer.

func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func number(n int) any {
	if n == 0 {
		return nil
	}
	return n
}

func timestamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.Format(time.RFC3339Nano)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
