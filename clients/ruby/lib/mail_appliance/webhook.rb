# frozen_string_literal: true

require "json"
require "openssl"

module MailAppliance
  # The Event of a webhook request, or SignatureInvalid.
  #
  # +body+:: the request's body, byte for byte as it came
  # +header+:: its Service-Signature header, or nil
  # +secrets+:: the endpoint's secret, or an Array of them while one replaces the other. A secret that is nil or empty
  #             raises ConfigurationError, so that ENV["…"] can be passed as it is.
  # +tolerance+:: seconds by which the signature may be older or newer than +now+
  def self.verify(body, header, secrets, tolerance: 300, now: Time.now)
    Webhook.verify(body.b, header.to_s.b, Array(secrets), tolerance, now.to_i)
  end

  # The signature of webhooks. The key of the HMAC is the whole secret, `whsec_` included.
  module Webhook
    module_function

    def verify(body, header, secrets, tolerance, now)
      if secrets.empty? || secrets.any? { |secret| secret.to_s.empty? }
        raise ConfigurationError, "secrets: a webhook secret is missing or empty. Pass the secret of your webhook."
      end

      time, signatures = parse(header)
      raise SignatureInvalid, "no v1 signature is right" unless signed?("#{time}.".b << body, secrets, signatures)
      raise SignatureInvalid, "the signature is not of these #{tolerance} seconds" if (now - time.to_i).abs > tolerance

      event(body)
    end

    # The time as it was written, and the signatures.
    def parse(header)
      parts = header.split(",").map { |part| part.split("=", 2) }
      times, signatures = %w[t v1].map { |name| parts.filter_map { |key, value| value if key == name } }
      return times.first, signatures if times.size == 1 && times.first.match?(/\A\d{1,15}\z/)

      raise SignatureInvalid, "the signature header is missing or malformed"
    end

    # Compares every pair, so that the time taken does not tell which one matched.
    def signed?(content, secrets, signatures)
      expected = secrets.map { |secret| OpenSSL::HMAC.hexdigest("SHA256", secret, content) }
      expected.product(signatures).map { |right, given| OpenSSL.secure_compare(right, given) }.any?
    end

    def event(body)
      text = body.dup.force_encoding(Encoding::UTF_8)
      object = JSON.parse(text, freeze: true) if text.valid_encoding?
      id, type, data = object.values_at("id", "type", "data") if object.is_a?(Hash)
      unless id.is_a?(String) && type.is_a?(String) && data.is_a?(Hash)
        raise SignatureInvalid, "the signed body is not an event"
      end

      received = ReceivedEmail.from_json(data) if type == "email.received"
      Event.from_json(object.merge("data" => data.transform_keys(&:to_sym)), received: received)
    rescue JSON::ParserError
      raise SignatureInvalid, "the signed body is not an event"
    end
  end
  private_constant :Webhook
end
