# frozen_string_literal: true

require "json"
require "net/http"
require "shellwords"
require "uri"
require_relative "../mail_appliance"

module MailAppliance
  # `appliance dev` for tests end to end: starts it on free ports, waits for messages, and stops it. Messages are in
  # memory.
  #
  #   appliance = MailAppliance::DevAppliance.start
  #   mail = appliance.wait(to: "ada@example.net")
  #   mail[:text]
  #   appliance.stop
  class DevAppliance
    # No message came within the time.
    class Timeout < StandardError; end

    HIDDEN = { "APPLIANCE_CONFIG" => nil, "NOTIFY_SOCKET" => nil }.freeze
    READ_TIMEOUT = 120 # seconds

    attr_reader :url, :smtp_host, :smtp_port

    # Start it and wait until it listens. +command+ is the program; default: $APPLIANCE_COMMAND or `appliance`.
    def self.start(command = ENV.fetch("APPLIANCE_COMMAND", "appliance"))
      words = [*Shellwords.split(command), "dev", "--port", "0", "--smtp-port", "0", "--json"]
      output = IO.popen([HIDDEN, *words])
      line = output.gets
      raise "#{command} dev did not start" if line.nil?

      new(output, JSON.parse(line))
    end

    def initialize(output, addresses)
      @output = output
      @url = addresses.fetch("url")
      @smtp_host = addresses.fetch("smtp_host")
      @smtp_port = addresses.fetch("smtp_port")
    end

    # A client that sends to it.
    def client
      Client.new(url, token: "dev")
    end

    # The newest message to this address or domain, with this part of its subject; waits up to +timeout+ seconds.
    def wait(to: nil, subject: nil, timeout: 10)
      filters = { to: to, subject: subject }.compact
      query = URI.encode_www_form(**filters, wait: "#{timeout}s", limit: 1)
      email = call(Net::HTTP::Get, "/v1/emails?#{query}")[:emails].first
      raise Timeout, "no message with #{filters} within #{timeout} s" if email.nil?

      email.merge(call(Net::HTTP::Get, "/v1/emails/#{email[:id]}/body"))
    end

    # Delete all messages.
    def clear
      call(Net::HTTP::Delete, "/v1/emails")
      nil
    end

    # Stop the server.
    def stop
      Process.kill("TERM", @output.pid)
      @output.close
    end

    private

    def call(method, path)
      uri = URI(url + path)
      answer = Net::HTTP.start(uri.host, uri.port, nil, read_timeout: READ_TIMEOUT) { |http| http.request(method.new(uri)) }
      raise "#{method::METHOD} #{path}: #{answer.body}" unless answer.is_a?(Net::HTTPSuccess)

      JSON.parse(answer.body, symbolize_names: true)
    end
  end
end
