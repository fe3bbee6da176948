package mailappliancetest_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	mailappliance "github.com/mail-appliance/mail-appliance-go"
	"github.com/mail-appliance/mail-appliance-go/mailappliancetest"
)

// A sign-up test as in the README, against the real program.
func TestSignUp(t *testing.T) {
	if os.Getenv("APPLIANCE_COMMAND") == "" {
		t.Skip("APPLIANCE_COMMAND is not set")
	}
	appliance := mailappliancetest.StartDev(t)
	_, err := appliance.Client(t).Send(context.Background(), mailappliance.Email{
		From:    "shop@my.test",
		To:      []string{"ada@example.net"},
		Subject: "Confirm your address",
		Text:    "https://my.test/confirm?token=42",
	})
	if err != nil {
		t.Fatal(err)
	}
	mail, err := appliance.Wait("ada@example.net", "confirm", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if mail.Subject != "Confirm your address" || !strings.Contains(mail.Text, "token=42") {
		t.Errorf("received %+v", mail)
	}
	if err := appliance.Clear(); err != nil {
		t.Fatal(err)
	}
	if _, err := appliance.Wait("", "", 0); err == nil {
		t.Error("a message after Clear")
	}
}
