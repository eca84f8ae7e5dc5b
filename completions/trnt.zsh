#compdef trnt

_trnt_completion() {
  eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _TRNT_COMPLETE=complete_zsh trnt)
}

compdef _trnt_completion trnt
