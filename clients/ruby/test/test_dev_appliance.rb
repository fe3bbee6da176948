# frozen_string_literal: true

require_relative "helper"
require "mail_appliance/dev_appliance"

# A sign-up test as in the README, against the real program that $APPLIANCE_COMMAND names.
class TestDevAppliance < Minitest::Test
  def setup
    skip "APPLIANCE_COMMAND is not set" unless ENV["APPLIANCE_COMMAND"]
    @appliance = MailAppliance::DevAppliance.start
  end

  def teardown
    @appliance&.stop
  end

  def test_a_sign_up_mails_a_link
    @appliance.client.send_email(from: "shop@my.test", to: "ada@example.net", subject: "Confirm your address",
                                 text: "https://my.test/confirm?token=42")
    mail = @appliance.wait(to: "ada@example.net")
    assert_equal "Confirm your address", mail[:subject]
    assert_includes mail[:text], "confirm?token=42"
    @appliance.clear
    assert_raises(MailAppliance::DevAppliance::Timeout) { @appliance.wait(timeout: 0) }
  end
end
