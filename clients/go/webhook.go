package mailappliance

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// SignatureHeader is the header of a webhook that [Verify] takes.
const SignatureHeader = "Service-Signature"

// DefaultTolerance is how far the time of a webhook may be from now.
const DefaultTolerance = 5 * time.Minute

// Event is the body of a webhook post: the result of one recipient. The same
// event may come more than once; its ID is then the same.
type Event struct {
	ID        string    `json:"id"`
	Type      string    `json:"type"` // "email.delivered", "email.bounced", "email.failed", "email.delayed", …
	CreatedAt time.Time `json:"created_at"`
	Data      EventData `json:"data"`

	// Received is the message of "email.received", and nil in other events.
	Received *ReceivedEmail `json:"-"`
}

// EventData is the recipient of an [Event]. Fields that the event did not have
// are empty.
type EventData struct {
	EmailID      string `json:"email_id,omitempty"`
	RecipientID  string `json:"recipient_id,omitempty"`
	To           string `json:"to,omitempty"`
	From         string `json:"from,omitempty"`
	Subject      string `json:"subject,omitempty"`
	SMTPCode     int    `json:"smtp_code,omitempty"`
	SMTPResponse string `json:"smtp_response,omitempty"`
	BounceClass  string `json:"bounce_class,omitempty"` // only in events of bounces and delays
	Test         bool   `json:"test,omitempty"`

	MessageID string            `json:"message_id,omitempty"` // the Message-ID header, without brackets
	Tags      []string          `json:"tags,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Stream    string            `json:"stream,omitempty"`
}

// Verify returns the event of a webhook that was signed with one of the
// secrets at most [DefaultTolerance] ago. body is the request's, byte for byte
// as received; header is its [SignatureHeader]. While a secret is being
// replaced, give the old and the new one.
//
// The error of a webhook that must not be trusted wraps [ErrSignatureInvalid].
// Without a secret, or with an empty one, it is a [*ConfigurationError].
func Verify(body []byte, header string, secrets ...string) (*Event, error) {
	return VerifyAt(time.Now(), DefaultTolerance, body, header, secrets...)
}

// VerifyAt is [Verify] at another time and with another tolerance.
func VerifyAt(now time.Time, tolerance time.Duration, body []byte, header string, secrets ...string) (*Event, error) {
	if len(secrets) == 0 {
		return nil, &ConfigurationError{Message: "secrets: a webhook secret is missing. Pass the secret of your webhook."}
	}
	for _, secret := range secrets {
		if secret == "" {
			return nil, &ConfigurationError{Message: "secrets: a webhook secret is empty. Pass the secret of your webhook."}
		}
	}
	if tolerance < 0 {
		return nil, &ConfigurationError{Message: "the tolerance is negative"}
	}
	t, signatures, err := parseSignature(header)
	if err != nil {
		return nil, err
	}
	if !signed(t, body, signatures, secrets) {
		return nil, invalid("no signature matches")
	}
	seconds, parseErr := strconv.ParseInt(t, 10, 64)
	if parseErr != nil {
		return nil, invalid("its time is out of range")
	}
	// Compared as whole numbers of nanoseconds by Sub, which saturates.
	if age := now.Sub(time.Unix(seconds, 0)); age > tolerance || age < -tolerance {
		return nil, invalid("its time is too far from now")
	}
	event, err := readEvent(body)
	if err != nil || event.ID == "" || event.Type == "" {
		return nil, invalid("the body is not an event")
	}
	return event, nil
}

func readEvent(body []byte) (*Event, error) {
	var fields struct {
		ID        string          `json:"id"`
		Type      string          `json:"type"`
		CreatedAt time.Time       `json:"created_at"`
		Data      json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, err
	}
	event := &Event{ID: fields.ID, Type: fields.Type, CreatedAt: fields.CreatedAt}
	if len(fields.Data) == 0 {
		return event, nil
	}
	if fields.Type != "email.received" {
		return event, json.Unmarshal(fields.Data, &event.Data)
	}
	event.Received = &ReceivedEmail{}
	if err := json.Unmarshal(fields.Data, event.Received); err != nil {
		return nil, err
	}
	email := event.Received
	event.Data = EventData{From: email.From, Subject: email.Subject, MessageID: email.MessageID, Test: email.Test}
	return event, nil
}

// parseSignature reads "t=<seconds>,v1=<hex>": exactly one t, one or more v1,
// in any order; other parts are ignored, for later versions.
func parseSignature(header string) (t string, signatures [][]byte, err error) {
	times := 0
	for _, part := range strings.Split(header, ",") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(part), "="); name {
		case "t":
			t = value
			times++
		case "v1":
			if signature, err := hex.DecodeString(value); err == nil {
				signatures = append(signatures, signature)
			}
		}
	}
	if times != 1 || !digits(t) || len(signatures) == 0 {
		return "", nil, invalid("the header is malformed")
	}
	return t, signatures, nil
}

// signed reports whether any signature is one by any secret. It makes every
// comparison, each in constant time.
func signed(t string, body []byte, signatures [][]byte, secrets []string) bool {
	found := false
	for _, secret := range secrets {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(t + "."))
		mac.Write(body)
		expected := mac.Sum(nil)
		for _, signature := range signatures {
			if hmac.Equal(expected, signature) {
				found = true
			}
		}
	}
	return found
}

func invalid(reason string) error { return fmt.Errorf("%w: %s", ErrSignatureInvalid, reason) }
