# frozen_string_literal: true

require "json"
require "uri"

module MailAppliance
  # What a transport is given. +body+ is nil for GET.
  Request = Struct.new(:verb, :uri, :headers, :body, keyword_init: true)

  # Internal. Makes the requests of one client: its URL and credentials, checked once, and the JSON of messages.
  # No I/O; whatever cannot be sent is a ConfigurationError.
  class RequestBuilder
    USER_AGENT = "mail-appliance-ruby/#{VERSION} ruby/#{RUBY_VERSION}"
    # 1 to 255 printable ASCII characters without a space at either end.
    IDEMPOTENCY_KEY = /\A[!-~](?:[ -~]{0,253}[!-~])?\z/n
    VARIABLES = {
      url: "MAIL_APPLIANCE_URL",
      username: "MAIL_APPLIANCE_USERNAME",
      password: "MAIL_APPLIANCE_PASSWORD",
      token: "MAIL_APPLIANCE_TOKEN"
    }.freeze

    # The base URL, without a slash at its end.
    attr_reader :url

    # +given+ has the keys of VARIABLES; +environment+ is ENV or a Hash like it.
    def initialize(given, environment)
      @given = given.transform_values { |value| presence(value) }
      @environment = VARIABLES.transform_values { |name| presence(environment[name]) }
      @url = read_url
      @authorization = authorization
      remove_instance_variable(:@given)
      remove_instance_variable(:@environment)
    end

    # POST {url}/emails
    def send_email(fields, idempotency_key)
      post("/emails", idempotency_key) { message(fields) }
    end

    # POST {url}/emails/batch
    def send_batch(messages, on_error, idempotency_key)
      post("/emails/batch", idempotency_key) do
        emails = messages.each_with_index.map { |fields, index| message(fields, "emails[#{index}].") }
        on_error ? { "emails" => emails, "on_error" => on_error } : { "emails" => emails }
      end
    end

    # GET {url}/emails/{id}, or another verb and what follows the id.
    def about(id, verb: "GET", action: "", body: nil)
      headers = body ? common_headers.merge("Content-Type" => "application/json") : common_headers
      Request.new(verb: verb, uri: URI("#{url}/emails/#{escaped(id)}#{action}"), headers: headers, body: body).freeze
    end

    # PATCH {url}/emails/{id}
    def reschedule(id, scheduled_at)
      about(id, verb: "PATCH", body: JSON.generate(message({ scheduled_at: scheduled_at })))
    end

    private

    # The block makes the body.
    def post(path, idempotency_key)
      unless idempotency_key.is_a?(String) && idempotency_key.b.match?(IDEMPOTENCY_KEY)
        raise ConfigurationError,
              "idempotency_key: expected 1 to 255 printable ASCII characters without a space at either end"
      end

      headers = common_headers.merge("Content-Type" => "application/json", "Idempotency-Key" => idempotency_key)
      Request.new(verb: "POST", uri: URI("#{url}#{path}"), headers: headers, body: JSON.generate(yield)).freeze
    end

    def escaped(id)
      id = id.to_s.b
      raise ConfigurationError, "id: it is empty" if id.empty?

      id.gsub(/[^A-Za-z0-9\-._~]/n) { |octet| format("%%%02X", octet.ord) }
    end

    def common_headers
      { "Authorization" => @authorization, "Accept" => "application/json", "User-Agent" => USER_AGENT }
    end

    def presence(value)
      value unless value.to_s.empty?
    end

    def setting(name)
      @given[name] || @environment[name] ||
        raise(ConfigurationError, "#{name} is missing: give it, or set #{VARIABLES[name]}")
    end

    def read_url
      uri = URI.parse(setting(:url).to_s)
      unless uri.is_a?(URI::HTTP) && uri.hostname.to_s != "" && !uri.userinfo && !uri.query && !uri.fragment
        raise ConfigurationError,
              "url (MAIL_APPLIANCE_URL): expected http:// or https:// with a host, without user, query or fragment"
      end

      uri.to_s.sub(%r{/+\z}, "")
    rescue URI::InvalidURIError
      raise ConfigurationError, "url (MAIL_APPLIANCE_URL): this is not a URL"
    end

    # Given credentials win over all of the environment's; in the environment a token wins over a pair.
    def authorization
      pair_given = @given[:username] || @given[:password]
      if @given[:token] && pair_given
        raise ConfigurationError, "token and username with password are given; one of them is enough " \
                                  "(MAIL_APPLIANCE_TOKEN; MAIL_APPLIANCE_USERNAME, MAIL_APPLIANCE_PASSWORD)"
      end
      return bearer(@given[:token]) if @given[:token]
      return basic if pair_given
      return bearer(@environment[:token]) if @environment[:token]
      return basic if @environment[:username] || @environment[:password]

      raise ConfigurationError, "credentials are missing: give token (MAIL_APPLIANCE_TOKEN), or username and " \
                                "password (MAIL_APPLIANCE_USERNAME, MAIL_APPLIANCE_PASSWORD)"
    end

    def bearer(token)
      return "Bearer #{token}" if token.to_s.b.match?(/\A[!-~]+\z/n)

      raise ConfigurationError, "token (MAIL_APPLIANCE_TOKEN): expected printable ASCII characters without spaces"
    end

    def basic
      username = setting(:username).to_s
      password = setting(:password).to_s
      # RFC 7617 2: the first colon ends the user name.
      raise ConfigurationError, "username (MAIL_APPLIANCE_USERNAME): it has a colon" if username.include?(":")

      "Basic #{["#{username}:#{password}"].pack("m0")}"
    end

    # The JSON object of a message; +place+ names it in errors.
    def message(fields, place = "")
      fields.compact.to_h do |name, value|
        value = value.iso8601(3) if name == :scheduled_at && value.is_a?(Time)
        [name, json_value(value, "#{place}#{name}")]
      end
    end

    # +value+ with strings of UTF-8 only; +field+ names it in an error.
    def json_value(value, field)
      case value
      when String, Symbol then utf8(value.to_s, field)
      when Array then value.each_with_index.map { |each, index| json_value(each, "#{field}[#{index}]") }
      when Hash then value.to_h { |key, each| [utf8(key.to_s, field), json_value(each, "#{field}.#{key}")] }
      when Attachment then attachment(value, field)
      when Integer, true, false, nil then value
      when Float
        value.finite? ? value : raise(ConfigurationError, "#{field}: #{value} cannot be written as JSON")
      else raise ConfigurationError, "#{field}: a #{value.class} cannot be written as JSON"
      end
    end

    def attachment(value, field)
      fields = { filename: value.filename, content_type: value.content_type, content_id: value.content_id }
      json_value(fields.compact, field).merge("content" => [value.bytes].pack("m0"))
    end

    def utf8(text, field)
      text = text.encoding == Encoding::BINARY ? text.dup.force_encoding(Encoding::UTF_8) : text.encode(Encoding::UTF_8)
      text.valid_encoding? ? text : raise(ConfigurationError, "#{field}: this is not valid UTF-8")
    rescue EncodingError
      raise ConfigurationError, "#{field}: this cannot be converted to UTF-8"
    end
  end
end
