# frozen_string_literal: true

module MailAppliance
  VERSION = "1.2.0"
end
